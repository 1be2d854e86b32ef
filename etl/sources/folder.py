"""A folder with a folder per class; how folders and symbolic links in them are walked, and files of images are read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from pyarrow import fs

from etl.errors import UsageError, require_utf8
from etl.sources.base import MAX_WHOLE_BYTES, Content, Source, SourceImage, SourceOptions, change_error
from etl.sources.fields import (
    LIST_NAMES,
    SPLITS_BY_WORD,
    UNREAD_ARCHIVES,
    checked_key,
    checked_label,
    is_large_file,
    is_visible,
    number_labels,
    split_of,
    words_of,
)
from etl.sources.idx import IDX_ENDINGS, IDX_IMAGES
from etl.storage.place import READ_BUFFER_BYTES, Place

MAX_DEPTH = 256  # of folders; each needs a frame of Python's stack


class FolderSource(Source):
    """A folder with a folder per class; an image's key is its path below the source.

    With ``split_folders`` the first level names the split and the second the class. Hidden files, and files outside a
    class's folder, are skipped and counted; every other file is taken for an image. Raises UsageError if there is
    none, for a name that cannot be a key, for an archive, a Parquet or an IDX file among the images of a class, and for
    a link that leads out of the source, unless ``follow_links`` is given.
    """

    kind = "folder"
    supported_options: ClassVar[tuple[str, ...]] = ("split_folders", "follow_links")

    def __init__(self, place: Place, options: SourceOptions) -> None:
        self._place = place
        self._split_folders = split_folders = options.split_folders
        files = list(walk(place, None if options.follow_links else place))
        where = f"a file in {place}"
        located = [(self._locate(path, where), info) for path, info in files]
        found = [(found, info) for found, info in located if found is not None and info.size is not None]
        self.skipped = len(files) - len(found)
        if not found:
            raise UsageError(self._without_images(info.base_name for _, info in files))
        names = sorted({name for (_, name, _), _ in found})
        for name in names:
            checked_label(name, f"the folder {place / name}")
        is_deep = all(key.count("/") > 1 + bool(split_folders) for (_, _, key), _ in found)
        reject_wrong_level(names, is_deep, options, place, f"give {place / names[0]}")
        self.classes, labels = number_labels(names, options, place)
        self.images = sorted(
            (
                SourceImage(key, labels[name], split or None, info.size, info.mtime_ns)
                for (split, name, key), info in found
            ),
            key=lambda image: image.key,
        )

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        for image in images:
            yield read_file(self._place / image.key, image)

    def _without_images(self, names: Iterable[str]) -> str:
        """The message if there are only files of these names."""
        path = "train/CLASS/IMAGE.jpg" if self._split_folders else "CLASS/IMAGE.jpg"
        others = [name for name in names if LIST_NAMES.search(name) or is_large_file(name)]
        remedy = (
            f"; give {others[0]} itself, or archives or Parquet files in a folder with nothing else in it"
            if others
            else ""
        )
        return f"no images in {self._place}; expected files such as {self._place}/{path}{remedy}"

    def _locate(self, key: str, where: str) -> tuple[str, str, str] | None:
        """(split or '', class, key) of a file; None if it is hidden or not in the folder of a class."""
        if not is_visible(key):
            return None
        found = class_folder(key, self._split_folders, self._place)
        if found is None:
            return None
        if is_large_file(key):
            raise UsageError(
                f"{self._place / key} is not an image; give a folder of archives, or of Parquet files, with nothing"
                " else in it, or move that file elsewhere"
            )
        if UNREAD_ARCHIVES.search(key):
            raise UsageError(f"{self._place / key} is an archive, not an image; unpack it, or pack it again as .tar")
        if key.endswith(IDX_ENDINGS) and IDX_IMAGES.fullmatch(key.rpartition("/")[2]):
            raise UsageError(f"{self._place / key} is an IDX file, not an image. Give the folder of it and its labels")
        return *found, checked_key(key, where)


def class_folder(path: str, split_folders: bool, place: Place) -> tuple[str, str] | None:
    """(split or '', class) of a path below ``place``, by its first folders; None outside the folders of classes.

    Raises UsageError if, with ``split_folders``, the first folder does not name a split.
    """
    folders = path.split("/")[:-1]
    if not split_folders:
        return ("", folders[0]) if folders else None
    if len(folders) < 2:
        return None
    return split_of_folder(folders[0], place), folders[1]


def split_of_folder(name: str, place: Place) -> str:
    """The split that a folder of the first level below ``place`` names. Raises UsageError if it names none."""
    split = split_of(name)
    if split is None:
        raise UsageError(
            f"{place / name} names no split; with --split-folders a word of the first level is one of"
            f" {', '.join(SPLITS_BY_WORD)}"
        )
    return split


def reject_wrong_level(names: Sequence[str], is_deep: bool, options: SourceOptions, place: Place, inside: str) -> None:
    """Raise UsageError if the folders that give the labels are those of splits, or the one that contains all classes.

    Folders look like splits if their ``names`` differ only by words for splits (seg_train, seg_test). ``is_deep`` is
    True if all images lie in folders below them, ``inside`` says how to start below the first of them.
    """
    others = {tuple(word for word in words_of(name) if word not in SPLITS_BY_WORD) for name in names}
    if not options.split_folders and len(names) > 1 and len(others) == 1 and all(map(split_of, names)):
        raise UsageError(
            f"the folders of {place} ({', '.join(names)}) look like splits, not classes; give --split-folders"
        )
    if len(names) == 1 and is_deep:
        remedy = (
            "move these folders up to those of the splits"
            if options.split_folders
            else f"{inside}, or --split-folders if it names the split"
        )
        raise UsageError(
            f"all images of {place} lie in folders below {names[0]!r}, which would be their only class; {remedy}"
        )


def read_file(place: Place, image: SourceImage) -> Content:
    """The bytes of an image that is a file of its own. Raises DataError if it is not as long as it was."""
    if image.size_bytes > MAX_WHOLE_BYTES:
        return _read_pieces(place, image)
    try:
        data = place.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise change_error(place) from None
    if len(data) != image.size_bytes:
        raise change_error(place)
    return data


def _read_pieces(place: Place, image: SourceImage) -> Iterator[bytes]:
    left = image.size_bytes
    try:
        with place.filesystem.explain_errors(place.path), place.open_stream() as stream:
            while left >= 0 and (piece := stream.read(READ_BUFFER_BYTES)):
                left -= len(piece)
                yield piece
    except FileNotFoundError:
        raise change_error(place) from None
    if left:
        raise change_error(place)


def require_inside(file: Place, source: Place, real_source: str, where: str = "") -> None:
    """Raise UsageError if a link leads ``file`` out of the folder ``source``, whose real path is ``real_source``.

    A user who can write to a source must not be able to choose which other files of this machine become part of a
    dataset. Hard links are files like others.
    """
    target = file.real_path
    if not f"{target}/".startswith(f"{real_source.rstrip('/')}/"):
        raise UsageError(
            f"{where}{file} leads by a link to {target}, out of {source}; remove it, or give --follow-links to take"
            " what links lead to"
        )


def walk(
    folder: Place, source: Place | None = None, prefix: str = "", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, fs.FileInfo]]:
    """Yield (path below ``folder``, after ``prefix``; info) of everything below that is not a visible folder.

    Links to folders are followed, hidden links are left out. ``above`` are the real paths of the folders above. Raises
    UsageError for a circle, for a link to nothing, for a link that leads out of the ``source`` (None: it may), and for
    more than `MAX_DEPTH` folders within each other.
    """
    if len(above) > MAX_DEPTH:
        raise UsageError(f"{prefix[:MAX_DEPTH]}... is more than {MAX_DEPTH} folders deep. Move what is in it up")
    real_path = folder.real_path
    if real_path in above:
        raise UsageError(f"{folder} is a link back to a folder that it lies in; remove it")
    hidden = set()
    for name in folder.filesystem.links(folder.path):
        if not is_visible(f"{prefix}{name}"):
            hidden.add(name)
            continue
        require_utf8(f"the name of a link in {folder}", name)
        if not (folder / name).exists():
            raise UsageError(f"{folder / name} is a link to nothing; remove it, or put back what it led to")
        if source:
            require_inside(folder / name, source, (*above, real_path)[0])
    for info in folder.children():
        path = f"{prefix}{info.base_name}"
        if hidden and info.base_name in hidden:
            continue
        # only a regular file has a size; Arrow makes an enum of a type, which takes 20 times as long
        if info.size is None and info.type == fs.FileType.Directory and is_visible(path):
            yield from walk(folder / info.base_name, source, f"{path}/", (*above, real_path))
        else:
            yield path, info
