"""Archives: tar files and WebDataset shards, plain or compressed with gzip or zstd."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import ClassVar

from pyarrow import fs

from etl.errors import UsageError
from etl.sources.base import (
    MAX_WHOLE_BYTES,
    Content,
    LargeFile,
    Source,
    SourceImage,
    SourceOptions,
    in_place_error,
    reject_duplicates,
    require_same,
    version_of,
)
from etl.sources.fields import ARCHIVE_NAMES, INNER_ARCHIVES, checked_key, is_visible, number_labels, split_of
from etl.sources.folder import reject_wrong_level
from etl.sources.tar_members import ByteRange, DecompressedFile, InnerArchive, Member, read_members
from etl.sources.webdataset import MAX_TEXT_BYTES, LabelledImage, Labeller, Sample, split_name
from etl.storage.place import READ_BUFFER_BYTES, Place
from etl.threads import in_threads

_LISTED_AT_ONCE = 4
_LISTING_BUFFER = 1 << 16  # small, because most of what follows a header is the content of an image, which is not read
_READING_BUFFER = 1 << 18


class ArchiveSource(Source):
    """Images in archives; an image's key is the archive's path below the source, without suffixes, and its own name.

    Labels come from the samples of WebDataset, else from the folders within an archive, as in `FolderSource`, or from
    the names of archives within it, as in ImageNet's. Hidden members, and members that neither are images nor describe
    one, are skipped and counted.
    """

    kind = "archive"
    supported_options: ClassVar[tuple[str, ...]] = ("split_folders", "label_column", "split_column")

    def __init__(self, place: Place, files: list[Place], options: SourceOptions) -> None:
        named = files[0] if len(files) == 1 else place
        self._archives = [_Archive(number, file, place, options) for number, file in enumerate(files)]
        in_threads(_Archive.list_images, self._archives, min(_LISTED_AT_ONCE, len(files)))
        self.is_sequential = any(archive.is_compressed for archive in self._archives)
        self.skipped = sum(archive.skipped for archive in self._archives)
        labels = {image.label for archive in self._archives for image in archive.images}
        if not labels:
            raise UsageError(f"no images in {named}; expected members such as CLASS/IMAGE.jpg or CLASS.tar")
        folders = sorted({image.label for archive in self._archives for image in archive.images if image.by_folder})
        is_deep = all(image.is_deep for archive in self._archives for image in archive.images)
        reject_wrong_level(folders, is_deep, options, named, "pack again from inside it (tar -C)")
        self.classes, numbers = number_labels(labels, options, named)
        self.images = [image for archive in self._archives for image in archive.take_images(numbers)]
        keys = [image.key for image in self.images]
        reject_duplicates(keys, lambda image: str(self._archives[self.images[image].position[0]].file))

    def large_files(self) -> list[LargeFile]:
        """Return the archives. Raises UsageError if one is compressed."""
        for archive in self._archives:
            if archive.is_compressed:
                raise in_place_error(f"{archive.file} is compressed")
        return [LargeFile(archive.file, archive.info) for archive in self._archives]

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """As of `Source`. A compressed file is read from its beginning."""
        for number, run in groupby(images, lambda image: image.position[0]):
            archive = self._archives[number]
            require_same(archive.file, archive.info)
            with closing(DecompressedFile(archive.file, _READING_BUFFER)) as file:
                for image in run:
                    yield _read(file, image.position[1], image.size_bytes)


def _read(file: DecompressedFile, offset: int, size: int) -> Content:
    if size <= MAX_WHOLE_BYTES:
        return file.read_exactly(offset, size)
    end = offset + size
    starts = range(offset, end, READ_BUFFER_BYTES)
    return (file.read_exactly(start, min(READ_BUFFER_BYTES, end - start)) for start in starts)


class _Archive:
    """One archive: what its listing found, until the images are taken, and how the file was then."""

    is_compressed: bool
    info: fs.FileInfo

    def __init__(self, number: int, file: Place, source: Place, options: SourceOptions) -> None:
        path = file.path[len(source.path.rstrip("/")) + 1 :]
        self.file, self._number, self._prefix = file, number, checked_key(ARCHIVE_NAMES.sub("", path), str(file))
        self._labeller = Labeller(file, options, split_of(path))
        self.images: list[LabelledImage] = []
        self.skipped = 0

    def list_images(self) -> Generator[None]:
        """Find the images; yields after each sample, so that this can be stopped."""
        with closing(DecompressedFile(self.file, _LISTING_BUFFER)) as file:
            self.is_compressed, self.info = file.is_compressed, file.info
            for key, members in groupby(self._read_members(file), lambda member: split_name(member.name)[0]):
                sample = Sample(key)
                for member in members:
                    self._take(sample, member, file)
                self.skipped += not sample.images and "txt" in sample.texts
                self.images += self._labeller.label(sample)
                yield

    def take_images(self, numbers: Mapping[str, int]) -> Iterator[SourceImage]:
        """Yield the images and release the memory of the listing; ``numbers`` are those of the classes by label."""
        images, self.images = self.images, []
        for each in images:
            yield SourceImage(
                checked_key(f"{self._prefix}/{each.member.name}", f"a member of {self.file}"),
                numbers[each.label],
                each.split,
                each.member.size,
                version_of(self.info),
                each.columns,
                (self._number, each.member.offset),
            )

    def _read_members(self, file: DecompressedFile) -> Iterator[Member]:
        """The visible members, and the visible members of archives within the archive in place of these."""
        for member in self._visible(file):
            if not INNER_ARCHIVES.search(member.name):
                yield member
                continue
            folder = INNER_ARCHIVES.sub("/", member.name)
            inner = InnerArchive(file, member)
            for each in self._visible(inner):
                if INNER_ARCHIVES.search(each.name):
                    raise UsageError(f"{inner} contains the archive {each.name!r}. Give {member.name!r} itself")
                name = checked_key(folder + each.name, str(inner))
                yield Member(name, member.offset + each.offset, each.size, member.name)

    def _visible(self, file: ByteRange) -> Iterator[Member]:
        """The members that are not hidden; the others are counted."""
        for member in read_members(file):
            if is_visible(member.name):
                yield member
            else:
                self.skipped += 1

    def _take(self, sample: Sample, member: Member, file: DecompressedFile) -> None:
        """Add a member to its sample, with its content if it is a text."""
        _, kind = split_name(member.name)
        if kind == "image":
            sample.images.append(member)
            return
        if kind not in MAX_TEXT_BYTES and member.name.lower().endswith(".cls"):
            sample.dotted = sample.dotted or member.name
        most = MAX_TEXT_BYTES.get(kind, 0)
        if not most or (kind == "txt" and member.size > most):
            self.skipped += 1
            return
        if member.size > most or kind in sample.texts:
            fault = f"has more than {most} bytes" if member.size > most else "is the second one of its sample"
            raise UsageError(f"the member {member.name!r} of {self.file} {fault}; pack again without it")
        sample.texts[kind] = (member.name, file.read_exactly(member.offset, member.size))
