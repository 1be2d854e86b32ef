"""Archives: tar files and WebDataset shards, plain or packed by gzip or zstd."""

from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from threading import Lock
from typing import ClassVar

from etl.errors import DataError, UsageError
from etl.sources.base import (
    MOST_WHOLE_BYTES,
    PLAIN,
    Content,
    LargeFile,
    NotInPlaceError,
    Reading,
    SourceImage,
    all_classes,
    class_name,
    refuse_twice,
    split_of,
)
from etl.sources.decompress import ByteRange, UnpackedFile
from etl.sources.fields import checked_key
from etl.sources.file_names import ARCHIVE_NAMES, INNER_ARCHIVES, is_visible
from etl.sources.folder import refuse_splits_as_classes
from etl.sources.tar_members import InnerArchive, Member, read_members
from etl.sources.webdataset import TEXT_BYTES, Labelled, Labeller, Sample, is_text, split_name
from etl.storage.place import READ_BUFFER_BYTES, Place
from etl.threads import in_threads

_LISTED_AT_ONCE = 4
_LISTING_BUFFER = 1 << 16  # between two headers lies a member that is passed over
_READING_BUFFER = 1 << 18
_SEARCHED_AHEAD = 10_000  # members, for a message: about a shard


class ArchiveSource:
    """Images in archives; an image's key is the archive's path below the source, without suffixes, and its own name.

    Labels come from the samples of WebDataset, else from the folders within an archive, as in `FolderSource`, or from
    the names of archives within it, as in ImageNet's. What is hidden, and members that are neither images nor say
    anything of one, are skipped and counted.
    """

    kind = "archive"
    heeds: ClassVar[tuple[str, ...]] = ("split_folders", "label_column", "split_column")
    pixels = None

    def __init__(self, place: Place, files: list[Place], reading: Reading = PLAIN) -> None:
        named = files[0] if len(files) == 1 else place
        listings = [_Listing(number, file, place, reading) for number, file in enumerate(files)]
        in_threads(_Listing.fill, listings, min(_LISTED_AT_ONCE, len(files)))
        self._left: UnpackedFile | None = None
        self._lock = Lock()
        self._archives = [listing.archive for listing in listings]
        self.is_sequential = any(archive.is_packed for archive in self._archives)
        self.skipped = sum(listing.skipped for listing in listings)
        if not any(listing.images for listing in listings):
            raise UsageError(f"no images in {named}; expected members such as CLASS/IMAGE.jpg or CLASS.tar")
        _refuse_wrong_level(listings, reading, named)
        names = {label: class_name(label, reading.classes) for listing in listings for label in listing.labels}
        self.classes = all_classes(names.values(), reading, named)
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.images = list[SourceImage]()
        for listing in listings:
            listing.move_to(self.images, [numbers[names[label]] for label in listing.labels])
        keys = [image.key for image in self.images]
        refuse_twice(keys, lambda image: str(self._archives[self.images[image].position[0]].file))

    def large_files(self) -> list[LargeFile]:
        for archive in self._archives:
            if archive.is_packed:
                raise NotInPlaceError(f"{archive.file} is compressed")
        return [LargeFile(archive.file) for archive in self._archives]

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """As of `Source`. What is packed is unpacked from its beginning, or from where the call before ended."""
        for number, run in groupby(images, lambda image: image.position[0]):
            archive = self._archives[number]
            with ExitStack() as stack:
                file = stack.enter_context(self._go_on(archive) or UnpackedFile(archive.file, _READING_BUFFER))
                archive.require_same()
                for image in run:
                    yield _read(file, image.position[1], image.size_bytes)
                if archive.is_packed:
                    stack.pop_all()
                    self._leave(file)

    def _go_on(self, archive: "_Archive") -> UnpackedFile | None:
        """The reader that was left last, if it is one of this archive."""
        with self._lock:
            if self._left is None or self._left.place != archive.file:
                return None
            file, self._left = self._left, None
            return file

    def _leave(self, file: UnpackedFile) -> None:
        with self._lock:
            before, self._left = self._left, file
        if before is not None:
            before.close()


def _read(file: UnpackedFile, offset: int, size: int) -> Content:
    if size <= MOST_WHOLE_BYTES:
        return file.read_exactly(offset, size)
    end = offset + size
    starts = range(offset, end, READ_BUFFER_BYTES)
    return (file.read_exactly(start, min(READ_BUFFER_BYTES, end - start)) for start in starts)


@dataclass(frozen=True, slots=True)
class _Archive:
    """A file, as it was when it was listed."""

    file: Place
    is_packed: bool
    size_bytes: int
    version: int

    def require_same(self) -> None:
        """Raise DataError where it is another file now."""
        info = self.file.info()
        if (info.size, info.mtime_ns) != (self.size_bytes, self.version):
            raise DataError(f"{self.file} changed while it was read; run again when nobody writes there")


class _Listing:
    """What is in an archive, once it is filled.

    ``folders`` are those that gave labels; ``is_deep`` tells whether all labels did come from folders, and there are
    more folders below them.
    """

    archive: _Archive

    def __init__(self, number: int, file: Place, source: Place, reading: Reading) -> None:
        path = file.path[len(source.path.rstrip("/")) + 1 :]
        self.file, self._number, self._prefix = file, number, checked_key(ARCHIVE_NAMES.sub("", path), str(file))
        self._labeller = Labeller(file, reading, split_of(path), self._find)
        self._names: set[str] = set()  # of all members so far
        self._members: Iterator[Member] = iter(())
        self.images: list[SourceImage] = []
        self.labels: dict[str, int] = {}  # the images' labels count these, until they are moved
        self.skipped = 0
        self.folders: set[str] = set()
        self.is_deep = True
        self._first: Member | None = None  # of the images

    def fill(self) -> Generator[None]:
        """Find the images; stops to yield after each sample."""
        with UnpackedFile(self.file, _LISTING_BUFFER) as file:
            self.archive = _Archive(self.file, file.is_packed, file.info.size, file.info.mtime_ns)
            self._members = self._read_members(file)
            for sample in self._samples(file):
                self.images += map(self._listed, self._labeller.label(sample))
                yield
        self._names.clear()

    def move_to(self, images: list[SourceImage], numbers: Sequence[int]) -> None:
        """Hand the images over, each with the label that ``numbers`` gives for its number in ``labels``."""
        images += (replace(image, label=numbers[image.label]) for image in self.images)
        self.images.clear()

    def _listed(self, image: Labelled) -> SourceImage:
        if image.by_folder:
            self.folders.add(image.label)
        self.is_deep = self.is_deep and image.is_deep
        self._refuse_mixed(image.member)
        return SourceImage(
            f"{self._prefix}/{image.member.name}",
            self.labels.setdefault(image.label, len(self.labels)),
            image.split,
            image.member.size,
            self.archive.version,
            image.columns,
            (self._number, image.member.offset),
        )

    def _refuse_mixed(self, image: Member) -> None:
        """Raise UsageError if some images are in archives within this one and some are not."""
        self._first = self._first or image
        if bool(image.inner) is not bool(self._first.inner):
            inner, beside = (image, self._first) if image.inner else (self._first, image)
            raise UsageError(
                f"{self.file} has images in archives within it ({inner.inner!r}) and beside them ({beside.name!r})."
                " Pack again with only one of the two"
            )

    def _samples(self, file: UnpackedFile) -> Iterator[Sample]:
        for key, run in groupby(self._members, lambda member: split_name(member.name)[0]):
            sample = Sample(key)
            for member in run:
                self._take(sample, member, file)
            if not sample.images and "txt" in sample.texts:
                self.skipped += 1
            yield sample

    def _read_members(self, file: UnpackedFile) -> Iterator[Member]:
        """The visible members; in the place of an archive within this one, its members."""
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
        """The members of an archive that are not hidden; ``folder`` goes before their names to compare them."""
        for member in read_members(file):
            name = folder + member.name
            if name in self._names:
                raise UsageError(f"{self.file} has two members {name!r}; pack again with one of them")
            self._names.add(name)
            if is_visible(member.name):
                yield member
            else:
                self.skipped += 1

    def _find(self, key: str, kinds: Container[str]) -> str | None:
        """The name of a member with this key and one of these kinds, of those read or the next ones, which it reads."""
        names = chain(sorted(self._names), (member.name for member in islice(self._members, _SEARCHED_AHEAD)))
        return next((name for name in names if (split := split_name(name))[0] == key and split[1] in kinds), None)

    def _take(self, sample: Sample, member: Member, file: UnpackedFile) -> None:
        """Add a member to its sample, with its content where that is text."""
        _, kind = split_name(member.name)
        if kind == "image":
            sample.images.append(member)
            return
        if kind not in TEXT_BYTES and member.name.lower().endswith((".cls", ".json")):
            sample.dotted = sample.dotted or member.name
        if kind not in TEXT_BYTES or (kind == "txt" and member.size > TEXT_BYTES[kind]):
            self.skipped += 1
            return
        if member.size > TEXT_BYTES[kind]:
            raise UsageError(
                f"the member {member.name!r} of {self.file} has {member.size} bytes; a .{kind} has at most"
                f" {TEXT_BYTES[kind]}"
            )
        if kind in sample.texts:
            raise UsageError(
                f"the members {sample.texts[kind][0]!r} and {member.name!r} of {self.file} belong to one sample; pack"
                " again with one of them"
            )
        content = file.read_exactly(member.offset, member.size)
        if kind == "txt" and not is_text(content):
            self.skipped += 1
            return
        sample.texts[kind] = (member.name, content)


def _refuse_wrong_level(listings: Sequence[_Listing], reading: Reading, place: Place) -> None:
    """Raise UsageError where folders gave labels, but those that name the splits, or the one that holds all folders."""
    folders = sorted(set().union(*(listing.folders for listing in listings)))
    if not reading.split_folders:
        refuse_splits_as_classes(folders, place)
    if len(folders) == 1 and all(listing.is_deep for listing in listings):
        remedy = (
            "pack again without it"
            if reading.split_folders
            else f"pack again from inside it (tar -C {folders[0]} …), or give --split-folders if it names the split"
        )
        raise UsageError(
            f"all images of {place} lie in folders below {folders[0]!r}, which would be their only class; {remedy}"
        )
