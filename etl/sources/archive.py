"""Archives: tar files and WebDataset shards, plain or compressed with gzip or zstd."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from threading import Lock
from typing import ClassVar

from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.sources.base import (
    MAX_WHOLE_BYTES,
    Content,
    LargeFile,
    NotInPlaceError,
    SourceImage,
    SourceOptions,
    reject_duplicates,
)
from etl.sources.fields import number_labels
from etl.sources.folder import reject_wrong_level
from etl.sources.names import ARCHIVE_NAMES, INNER_ARCHIVES, checked_key, is_visible, split_of
from etl.sources.tar_members import ByteRange, DecompressedFile, InnerArchive, Member, read_members
from etl.sources.webdataset import TEXT_BYTES, Labelled, Labeller, Sample, split_name
from etl.storage.place import READ_BUFFER_BYTES, Place
from etl.threads import in_threads

_LISTED_AT_ONCE = 4
_LISTING_BUFFER = 1 << 16  # small, because most of what follows a header is the content of an image, which is not read
_READING_BUFFER = 1 << 18


class ArchiveSource:
    """Images in archives; an image's key is the archive's path below the source, without suffixes, and its own name.

    Labels come from the samples of WebDataset, else from the folders within an archive, as in `FolderSource`, or from
    the names of archives within it, as in ImageNet's. Hidden members, and members that neither are images nor describe
    one, are skipped and counted.
    """

    kind = "archive"
    supported_options: ClassVar[tuple[str, ...]] = ("split_folders", "label_column", "split_column")
    pixels = None

    def __init__(self, place: Place, files: list[Place], options: SourceOptions) -> None:
        named = files[0] if len(files) == 1 else place
        self._archives = [_Archive(number, file, place, options) for number, file in enumerate(files)]
        in_threads(_Archive.list_images, self._archives, min(_LISTED_AT_ONCE, len(files)))
        self._left: DecompressedFile | None = None
        self._lock = Lock()
        self.is_sequential = any(archive.is_compressed for archive in self._archives)
        self.skipped = sum(archive.skipped for archive in self._archives)
        if not any(archive.images for archive in self._archives):
            raise UsageError(f"no images in {named}; expected members such as CLASS/IMAGE.jpg or CLASS.tar")
        folders = sorted(set().union(*(archive.folders for archive in self._archives)))
        is_deep = all(archive.is_deep for archive in self._archives)
        reject_wrong_level(folders, is_deep, options, named, "pack again from inside it (tar -C)")
        labels = {label for archive in self._archives for label in archive.labels}
        self.classes, numbers = number_labels(labels, options, named)
        self.images = [image for archive in self._archives for image in archive.take_images(numbers)]
        keys = [image.key for image in self.images]
        reject_duplicates(keys, lambda image: str(self._archives[self.images[image].position[0]].file))

    def large_files(self) -> list[LargeFile]:
        for archive in self._archives:
            if archive.is_compressed:
                raise NotInPlaceError(f"{archive.file} is compressed")
        return [LargeFile(archive.file) for archive in self._archives]

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """As of `Source`. A compressed file is read from its beginning, or from where the call before ended."""
        for number, run in groupby(images, lambda image: image.position[0]):
            archive = self._archives[number]
            file = self._take_open(archive) or DecompressedFile(archive.file, _READING_BUFFER)
            unused: DecompressedFile | None = file
            try:
                archive.require_same()
                for image in run:
                    yield _read(file, image.position[1], image.size_bytes)
                if archive.is_compressed:
                    unused = self._leave_open(file)
            finally:
                if unused is not None:
                    unused.close()

    def _take_open(self, archive: "_Archive") -> DecompressedFile | None:
        """The reader that was left open last, if it is one of this archive."""
        with self._lock:
            if self._left is None or self._left.place != archive.file:
                return None
            file, self._left = self._left, None
            return file

    def _leave_open(self, file: DecompressedFile) -> DecompressedFile | None:
        """Keep a reader open for the next call; returns the one that was kept before."""
        with self._lock:
            before, self._left = self._left, file
        return before


def _read(file: DecompressedFile, offset: int, size: int) -> Content:
    if size <= MAX_WHOLE_BYTES:
        return file.read_exactly(offset, size)
    end = offset + size
    starts = range(offset, end, READ_BUFFER_BYTES)
    return (file.read_exactly(start, min(READ_BUFFER_BYTES, end - start)) for start in starts)


class _Archive:
    """One archive: what its listing found, until the images are taken, and how the file was then.

    ``labels`` are those of its images, ``folders`` those that folders gave; ``is_deep`` is True if all labels came from
    folders, and all images lie in folders below these.
    """

    is_compressed: bool
    _info: fs.FileInfo

    def __init__(self, number: int, file: Place, source: Place, options: SourceOptions) -> None:
        path = file.path[len(source.path.rstrip("/")) + 1 :]
        self.file, self._number, self._prefix = file, number, checked_key(ARCHIVE_NAMES.sub("", path), str(file))
        self._labeller = Labeller(file, options, split_of(path))
        self._names: set[str] = set()  # of all members so far
        self.images: list[Labelled] = []
        self.labels: dict[str, str] = {}  # to itself: one text for all images of a label
        self.folders: set[str] = set()
        self.is_deep = True
        self.skipped = 0

    def list_images(self) -> Generator[None]:
        """Find the images; yields after each sample, so that this can be stopped."""
        with closing(DecompressedFile(self.file, _LISTING_BUFFER)) as file:
            self.is_compressed, self._info = file.is_compressed, file.info
            for key, members in groupby(self._read_members(file), lambda member: split_name(member.name)[0]):
                sample = Sample(key)
                for member in members:
                    self._take(sample, member, file)
                self.skipped += not sample.images and "txt" in sample.texts
                for image in self._labeller.label(sample):
                    self._add(image)
                yield
        self._names.clear()

    def take_images(self, numbers: Mapping[str, int]) -> Iterator[SourceImage]:
        """Yield the images and release the memory of the listing; ``numbers`` are those of the classes by label."""
        images, self.images = self.images, []
        for each in images:
            yield SourceImage(
                f"{self._prefix}/{each.member.name}",
                numbers[each.label],
                each.split,
                each.member.size,
                self._info.mtime_ns,
                each.columns,
                (self._number, each.member.offset),
            )

    def require_same(self) -> None:
        """Raise DataError if the file has changed."""
        info = self.file.info()
        if (info.size, info.mtime_ns) != (self._info.size, self._info.mtime_ns):
            raise DataError(f"{self.file} changed while it was read; run again when nobody writes there")

    def _add(self, image: Labelled) -> None:
        """Add an image. Raises UsageError if some images are in archives within this one and some are not."""
        first = self.images[0].member if self.images else image.member
        if bool(image.member.inner) is not bool(first.inner):
            inner, beside = sorted((image.member, first), key=lambda member: not member.inner)
            raise UsageError(
                f"{self.file} has images in archives within it ({inner.inner!r}) and beside them ({beside.name!r})."
                " Pack again with only one of the two"
            )
        if image.by_folder:
            self.folders.add(image.label)
        self.is_deep = self.is_deep and image.is_deep
        self.images.append(replace(image, label=self.labels.setdefault(image.label, image.label)))

    def _read_members(self, file: DecompressedFile) -> Iterator[Member]:
        """The visible members, and the visible members of archives within the archive in place of these."""
        for member in self._visible(file):
            if not INNER_ARCHIVES.search(member.name):
                yield member
                continue
            folder = INNER_ARCHIVES.sub("/", member.name)
            inner = InnerArchive(file, member)
            for each in self._visible(inner, folder):
                if INNER_ARCHIVES.search(each.name):
                    raise UsageError(f"{inner} contains the archive {each.name!r}. Give {member.name!r} itself")
                name = checked_key(folder + each.name, str(inner))
                yield Member(name, member.offset + each.offset, each.size, member.name)

    def _visible(self, file: ByteRange, folder: str = "") -> Iterator[Member]:
        """The members that are not hidden; ``folder`` precedes their names when these are compared."""
        for member in read_members(file):
            name = folder + member.name
            if name in self._names:
                raise UsageError(f"{self.file} has two members {name!r}; pack again with one of them")
            self._names.add(name)
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
        if kind not in TEXT_BYTES and member.name.lower().endswith(".cls"):
            sample.dotted = sample.dotted or member.name
        longest = TEXT_BYTES.get(kind, 0)
        if not longest or (kind == "txt" and member.size > longest):
            self.skipped += 1
            return
        if member.size > longest:
            raise UsageError(
                f"the member {member.name!r} of {self.file} has {member.size} bytes; a .{kind} has at most {longest}"
            )
        if kind in sample.texts:
            raise UsageError(
                f"the members {sample.texts[kind][0]!r} and {member.name!r} of {self.file} belong to one sample; pack"
                " again with one of them"
            )
        content = file.read_exactly(member.offset, member.size)
        if kind == "txt" and not _is_utf8(content):
            self.skipped += 1
            return
        sample.texts[kind] = (member.name, content)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
