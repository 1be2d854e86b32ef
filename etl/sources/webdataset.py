"""The samples of an archive: which of its members are images, and what others say of them. Pure.

Format: WebDataset (https://github.com/webdataset/webdataset): a sample is a run of members with the same path up to the
first dot of the base name; what follows that dot says what a member is. Where nothing else gives a label, the first
folder that an image lies in does.
"""

import json
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, NoReturn

from etl.errors import UsageError
from etl.sources.base import SPLITS_BY_WORD, Columns, Reading
from etl.sources.fields import LABEL, SPLIT, checked_label, checked_split, scalar_text, told_columns
from etl.sources.folder import class_folder
from etl.sources.tar_members import Member
from etl.storage.place import Place

_SUFFIXES = "avif bmp gif img j2k jfif jp2 jpeg jpg pbm pgm png pnm ppm tif tiff webp"
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
TEXT_BYTES = {"cls": 1_000, "json": 1_000_000, "txt": 10_000}  # the longest of each
TEXT_COLUMN = "txt"

Fields = dict[str, Any]
Find = Callable[[str, Container[str]], str | None]  # the name of a member with this key, and one of these kinds

_KEY_RULE = "the key of a member is its name up to the first dot behind its folders"


@dataclass(frozen=True, slots=True)
class Labelled:
    """An image of an archive, and what is told of it.

    ``by_folder`` is whether its folder, or archive within the archive, gave the label; ``is_deep`` whether it then lies
    in a folder below that.
    """

    member: Member
    label: str
    split: str | None
    columns: Columns | None
    by_folder: bool
    is_deep: bool = False


@dataclass
class Sample:
    """The members of a sample that are of use: images, and of each text ("cls", "json", "txt") its name and content.

    A "txt" is UTF-8. ``dotted`` is a .cls or .json that is no text of the sample because of another dot in its name.
    """

    key: str
    images: list[Member] = field(default_factory=list)
    texts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    dotted: str | None = None


def split_name(name: str) -> tuple[str, str]:
    """The sample that a member belongs to, and what it is: "image", "cls", "json", "txt", or "" for all else."""
    extension = split_extension(name)
    kind = extension.lower()
    if kind.rpartition(".")[2] in IMAGE_SUFFIXES:
        kind = "image"
    return name[: len(name) - len(extension)].removesuffix("."), kind if kind == "image" or kind in TEXT_BYTES else ""


def split_extension(name: str) -> str:
    """What follows the first dot of a member's base name."""
    return name.rpartition("/")[2].partition(".")[2]


def _class_path(image: Member, split_folders: bool) -> str:
    """The path whose folders give class and split: of an archive within an archive, its own name is the class."""
    above = image.inner.rpartition("/")[0]
    if not above:
        return image.name
    path = image.name[len(above) + 1 :]
    return f"{above.partition('/')[0]}/{path}" if split_folders else path


def is_text(content: bytes) -> bool:
    """Whether these bytes are UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


class Labeller:
    """Says of the images of one archive what its samples say. ``split`` is that of the archive's own name.

    ``find`` looks for a member that does not follow the others of its sample, for messages.
    """

    def __init__(self, archive: Place, reading: Reading, split: str | None, find: Find) -> None:
        self._archive, self._reading, self._split, self._find = archive, reading, split, find

    def label(self, sample: Sample) -> list[Labelled]:
        """The images of a sample.

        Raises UsageError where one has no label or two share one, and where a text has no image or says nothing clear.
        """
        for kind in ("cls", "json"):
            if kind in sample.texts and not sample.images:
                name = sample.texts[kind][0]
                self._refuse_apart(name, sample.key, ("image",))
                self._refuse(
                    name, f"has no image beside it with the key {sample.key!r} ({_KEY_RULE}). Rename or add it"
                )
        fields = self._fields(sample)
        label = self._stated_label(sample, fields)
        if label is not None and len(sample.images) > 1:
            self._refuse(
                sample.images[1].name,
                f"and {sample.images[0].name!r} share one label: both have the key {sample.key!r} ({_KEY_RULE})."
                " Rename them, without dots before the extension",
            )
        if label is None and sample.images and (sample.dotted or "").lower().endswith(".cls"):
            self._refuse_dotted(sample)
        split = self._stated_split(sample, fields)
        if "txt" in sample.texts and (text := sample.texts["txt"][1].decode("utf-8-sig").strip()):
            fields.setdefault(TEXT_COLUMN, text)
        columns = self._columns(sample, fields)
        return [self._labelled(sample, image, label, split, columns) for image in sample.images]

    def _refuse_apart(self, name: str, key: str, kinds: Container[str]) -> None:
        """Raise UsageError if a member of one of these kinds has this key, but does not follow the one of this name."""
        if (other := self._find(key, kinds)) is not None:
            self._refuse(
                name,
                f"does not lie beside {other[:200]!r}; both have the key {key!r} ({_KEY_RULE}), and members of one key"
                " must follow each other. Pack again, sorted: tar --sort=name",
            )

    def _refuse_dotted(self, sample: Sample) -> None:
        """Raise UsageError if a text beside the images is not read because of a dot in its name."""
        if sample.dotted is not None:
            extension = split_extension(sample.dotted)[:200]
            self._refuse(
                sample.images[0].name,
                f"has no label: {sample.dotted[:200]!r} has the extension {extension!r} and the key {sample.key!r}"
                f" ({_KEY_RULE}). Rename them, without dots before the extension",
            )

    def _fields(self, sample: Sample) -> Fields:
        """What the sample's .json says, without nulls."""
        if "json" not in sample.texts:
            return {}
        name, content = sample.texts["json"]
        try:
            fields = json.loads(content.decode("utf-8-sig"), parse_constant=lambda _: None)
        except UnicodeDecodeError as error:
            self._refuse(name, f"is not UTF-8 ({error.reason} at byte {error.start}); write it again")
        except (ValueError, RecursionError) as error:
            self._refuse(name, f"is no JSON ({error}); write it again")
        if not isinstance(fields, dict):
            self._refuse(name, "holds no JSON object; write it again")
        return {field: value for field, value in fields.items() if value is not None}

    def _stated_label(self, sample: Sample, fields: Fields) -> str | None:
        """The label that texts give: what the user asks for, else a .cls, else .json; taken out of ``fields``."""
        asked = self._reading.label_column
        if asked is None and "cls" in sample.texts:
            name, content = sample.texts["cls"]
            try:
                return checked_label(content.decode("utf-8-sig").strip(), self._where(name))
            except UnicodeDecodeError:
                self._refuse(name, "is not UTF-8; write it again")
        value = fields.pop(asked or LABEL, None)
        if value is None:
            if asked is not None:
                self._require_field(sample, "--label-column", asked)
            return None
        name, _ = sample.texts["json"]
        if isinstance(value, bool) or not isinstance(value, str | int):
            self._refuse(name, f"has no text and no whole number in {asked or LABEL!r}; write it again")
        return checked_label(str(value).strip(), self._where(name))

    def _stated_split(self, sample: Sample, fields: Fields) -> str | None:
        """The split that a .json gives; taken out of ``fields``."""
        asked = self._reading.split_column
        value = fields.pop(asked or SPLIT, None)
        if value is None:
            if asked is not None:
                self._require_field(sample, "--split-column", asked)
            return None
        return checked_split(str(value), self._where(sample.texts["json"][0]))

    def _require_field(self, sample: Sample, option: str, asked: str) -> None:
        """Raise UsageError where there are images without the field that the user asks for."""
        if sample.images:
            self._refuse(
                sample.images[0].name, f"has no .json with the field {asked!r} beside it; correct {option}, or add it"
            )

    def _columns(self, sample: Sample, fields: Fields) -> Columns | None:
        names = sorted(fields)
        told = told_columns(names, [scalar_text(fields[name]) for name in names])
        try:
            json.dumps(told, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            self._refuse(sample.texts["json"][0], "holds half a surrogate pair, which is no text; write it again")
        return told

    def _labelled(
        self, sample: Sample, image: Member, label: str | None, split: str | None, columns: Columns | None
    ) -> Labelled:
        if label is not None:
            if self._reading.split_folders:
                split = split or SPLITS_BY_WORD.get(image.name.partition("/")[0].lower())
            return Labelled(image, label, split or self._split, columns, by_folder=False)
        path = _class_path(image, self._reading.split_folders)
        folder = class_folder(path, self._reading.split_folders, self._archive)
        if folder is None:
            self._refuse_apart(image.name, sample.key, ("cls", "json"))
            self._refuse_dotted(sample)
            expected = "SPLIT/CLASS/IMAGE.jpg" if self._reading.split_folders else "CLASS/IMAGE.jpg"
            self._refuse(
                image.name,
                f"has no label: name it as in {expected}, or give its sample a .cls, or a .json with the field"
                f" {LABEL!r} (--label-column)",
            )
        label = checked_label(folder[1], self._where(image.name))
        is_deep = path.count("/") > 1 + bool(self._reading.split_folders)
        return Labelled(image, label, split or folder[0] or self._split, columns, by_folder=True, is_deep=is_deep)

    def _where(self, name: str) -> str:
        return f"the member {name[:200]!r} of {self._archive}"

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise UsageError(f"{self._where(name)} {why}")
