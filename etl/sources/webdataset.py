"""Find the labels, splits and columns of the images of an archive, from its samples or its folders. Pure.

Format: WebDataset (https://github.com/webdataset/webdataset): a sample is a run of members with the same path up to the
first dot of the base name; the rest of the name is the member's kind. If nothing else gives a label, the first folder
of an image does.
"""

from dataclasses import dataclass, field
from sys import intern  # one text for all images of a label
from typing import Any, NoReturn

from etl.errors import UsageError
from etl.sources.base import Columns, SourceOptions
from etl.sources.fields import (
    LABEL,
    SPLIT,
    checked_label,
    checked_split,
    known_columns,
    parse_object,
    scalar_text,
)
from etl.sources.folder import class_folder, split_of_folder
from etl.sources.tar_members import Member
from etl.storage.place import Place

_SUFFIXES = "avif bmp gif img j2k jfif jp2 jpeg jpg pbm pgm png pnm ppm tif tiff webp"
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
MAX_TEXT_BYTES = {"cls": 1_000, "json": 1_000_000, "txt": 10_000}

Fields = dict[str, Any]

_KEY_RULE = (
    "the key of a member is its name up to the first dot behind its folders, and members of one key must follow each"
    " other: rename them, or pack again with: tar --sort=name"
)


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image of an archive with its label, split and columns.

    ``by_folder`` is True if the label is that of its folder, or of an archive within the archive; ``is_deep`` if it
    then is in a folder below that.
    """

    member: Member
    label: str
    split: str | None
    columns: Columns | None
    by_folder: bool = False
    is_deep: bool = False


@dataclass
class Sample:
    """The used members of a sample: images, and the name and content of each text ("cls", "json", "txt").

    ``dotted`` is the name of a .cls that is not a text of the sample, because it has another dot in its name.
    """

    key: str
    images: list[Member] = field(default_factory=list)
    texts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    dotted: str | None = None


def split_name(name: str) -> tuple[str, str]:
    """The sample of a member, and its kind: "image", "cls", "json", "txt", or "" for all else."""
    extension = name.rpartition("/")[2].partition(".")[2]
    kind = extension.lower()
    if kind.rpartition(".")[2] in IMAGE_SUFFIXES:
        kind = "image"
    is_used = kind == "image" or kind in MAX_TEXT_BYTES
    return name[: len(name) - len(extension)].removesuffix("."), kind if is_used else ""


@dataclass(frozen=True)
class Labeller:
    """Labels the images of one archive; ``split`` is that of the archive's own name."""

    archive: Place
    options: SourceOptions
    split: str | None

    def label(self, sample: Sample) -> list[LabelledImage]:
        """The images of a sample.

        Raises UsageError if an image has no label, two images share one, or a text has no image or is unclear.
        """
        if not sample.images:
            for name, _ in (sample.texts[kind] for kind in ("cls", "json") if kind in sample.texts):
                self._refuse(name, f"has no image beside it with the key {sample.key!r}: {_KEY_RULE}")
            return []
        fields = self._fields(sample)
        label = self._stated_label(sample, fields)
        if label is not None and len(sample.images) > 1:
            other = sample.images[0].name
            self._refuse(sample.images[1].name, f"and {other!r} share the label of {sample.key!r}: {_KEY_RULE}")
        value = self._take(sample, fields, SPLIT)
        split = None if value is None else checked_split(str(value), self._where(sample.texts["json"][0]))
        if "txt" in sample.texts and (text := sample.texts["txt"][1].decode("utf-8-sig", "replace").strip()):
            fields["txt"] = text if fields.get("txt") is None else fields["txt"]
        names = sorted(fields)
        columns = known_columns(names, [scalar_text(fields[name]) for name in names])
        if label is None:
            return [self._label_by_folder(sample, image, split, columns) for image in sample.images]
        (image,) = sample.images
        if self.options.split_folders and split is None and "/" in image.name:
            split = split_of_folder(image.name.partition("/")[0], self.archive)
        return [LabelledImage(image, intern(label), split or self.split, columns)]

    def _fields(self, sample: Sample) -> Fields:
        """The fields of the sample's .json."""
        if "json" not in sample.texts:
            return {}
        name, content = sample.texts["json"]
        try:
            return parse_object(content)
        except ValueError as error:
            self._refuse(name, f"cannot be read: {error}; write it again")

    def _stated_label(self, sample: Sample, fields: Fields) -> str | None:
        """Take the label that texts give: in the field that the user names, else in a .cls, else in the .json."""
        if self.options.label_column is None and "cls" in sample.texts:
            name, content = sample.texts["cls"]
            try:
                return checked_label(content.decode("utf-8-sig").strip(), self._where(name))
            except UnicodeDecodeError:
                self._refuse(name, "is not UTF-8; write it again")
        value = self._take(sample, fields, LABEL)
        if value is None and self.options.label_column is None:
            return None
        name, _ = sample.texts["json"]
        if isinstance(value, bool) or not isinstance(value, str | int):
            self._refuse(
                name, f"has no text and no whole number in {self.options.label_column or LABEL!r}; write it again"
            )
        return checked_label(str(value).strip(), self._where(name))

    def _take(self, sample: Sample, fields: Fields, what: str) -> Any:
        """Take the label or split out of ``fields``. Raises UsageError if the field that the user named is missing."""
        asked = getattr(self.options, f"{what}_column")
        if asked is not None and asked not in fields:
            self._refuse(
                sample.images[0].name,
                f"has no .json with the field {asked!r} beside it; correct --{what}-column, or add it",
            )
        return fields.pop(asked or what, None)

    def _label_by_folder(
        self, sample: Sample, image: Member, split: str | None, columns: Columns | None
    ) -> LabelledImage:
        is_split_first = self.options.split_folders
        path = _class_path(image, is_split_first)
        folder = class_folder(path, is_split_first, self.archive)
        if folder is None or sample.dotted:
            expected = "SPLIT/CLASS/IMAGE.jpg" if is_split_first else "CLASS/IMAGE.jpg"
            found = f"; {sample.dotted[:200]!r} is not beside it" if sample.dotted else ""
            self._refuse(
                image.name,
                f"has no label{found}: name it as in {expected}, or put a .cls, or a .json with the field {LABEL!r}"
                f" (--label-column), beside it with the key {sample.key!r}: {_KEY_RULE}",
            )
        label = checked_label(folder[1], self._where(image.name))
        is_deep = path.count("/") > 1 + bool(is_split_first)
        return LabelledImage(
            image, intern(label), split or folder[0] or self.split, columns, by_folder=True, is_deep=is_deep
        )

    def _where(self, name: str) -> str:
        return f"the member {name[:200]!r} of {self.archive}"

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise UsageError(f"{self._where(name)} {why}")


def _class_path(image: Member, is_split_first: bool) -> str:
    """The path whose folders give class and split: of an archive within an archive, its own name is the class."""
    above = image.inner.rpartition("/")[0]
    if not above:
        return image.name
    path = image.name[len(above) + 1 :]
    return f"{above.partition('/')[0]}/{path}" if is_split_first else path
