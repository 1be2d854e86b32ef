"""Read the header of an image file: format, size, frames, orientation, colours. Names of files are not used."""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from PIL import AvifImagePlugin, Image, ImageFile, PngImagePlugin

from etl.images import icc
from etl.images.containers import bmp, jpeg, jpeg_2000, png, webp
from etl.images.result import Reason, Reject

JPEG, PNG, GIF, WEBP, AVIF, TIFF, PNM, JPEG_2000 = "jpeg", "png", "gif", "webp", "avif", "tiff", "ppm", "jpeg2000"
BMP = "bmp"

_SIGNATURES = (
    (jpeg.SIGNATURE, JPEG),
    (png.SIGNATURE, PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"\0\0\0\x0cjP  \r\n\x87\n", JPEG_2000),
    (b"\xff\x4f\xff\x51", JPEG_2000),
)
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_AVIF_BRANDS = {b"avif", b"avis"}
_OTHER_BRANDS = {  # of ISO/IEC 23008-12, annex B
    "HEIC": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"},
    "HEIF": {b"mif1", b"mif2", b"msf1", b"miaf"},
}
_CODES = re.compile(rb"colrnclx(..)(..)", re.DOTALL)  # ISO/IEC 14496-12, section 12.1.5
_MAX_META_BYTES = 1 << 16
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)  # sizes of BITMAPCOREHEADER to BITMAPV5HEADER
_MAX_BRANDS_BYTES = 1 << 10  # more than programs write
_PNM = re.compile(rb"P[1-6](?:\s|#[^\r\n]*[\r\n])+\d")
_MAX_PNM_BYTES = 1 << 16  # up to the width; matching takes about 100 bytes of memory for each
_PLAIN_PNM = re.compile(rb"P([56])\s(\d{1,9})\s(\d{1,9})\s255\s")  # netpbm's pgm(5), ppm(5), without comments
ORIENTATION = 0x0112
_XMP_ORIENTATION = re.compile(rb"""tiff:Orientation(?:\s*=\s*["']|\s*>)\s*([1-8])""")
# parts of the messages of decoders: of files that end too early, of what is not supported or too large to decompress
_TRUNCATED = re.compile("truncated|Premature end of JPEG file|Reached EOF|not enough image data", re.IGNORECASE)
_UNSUPPORTED = re.compile("unsupported|not supported|not implemented|too large for", re.IGNORECASE)
_CLEARER = {  # words of Pillow's
    "not identified by this driver": "its header states a side of 0 pixels, or no known samples",
    "unknown pixel mode": "samples of a layout that is not supported",
}
_NO_MEMORY = re.compile("(?:out of|insufficient) memory", re.IGNORECASE)
_MAX_COMPONENTS = 4  # of JPEG 2000, for Pillow
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a Python object, which is another one in every run

Image.MAX_IMAGE_PIXELS = None  # `etl.images.config.Limits` has the limit
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # a task has one core, and each thread would need a stack
PngImagePlugin.MAX_TEXT_CHUNK = 1 << 24  # of profiles, too: the maximum size of a profile in a JPEG
logging.getLogger("PIL").addHandler(logging.NullHandler())  # without a handler, its records go to standard error


@dataclass(frozen=True)
class Header:
    """``format`` is Pillow's name of it in lower case; ``width`` and ``height`` are of the first frame as stored.

    ``orientation`` is that of EXIF or an XMP packet, 1 to 8; 1 if the stored pixels are upright. ``components`` are
    those of a JPEG with a DCT, or of a PNG of 8 bits of gray or colour, else 0. ``profile`` is an ICC profile, or made
    from what the file states about its colours, and empty if Pillow finds it. ``bare`` is True if a PNG contains its
    picture only, or a JPEG nothing before its picture. ``offset`` is the place of a JPEG's first scan, or of the plain
    pixels of a PNM file, else 0. ``is_plain`` is True if decoding takes time and memory in proportion to the number of
    pixels, and uses no metadata: PNM files of plain pixels, sequential JPEGs without a profile, bare PNGs of 8 bits.
    """

    format: str
    width: int
    height: int
    frames: int = 1
    orientation: int = 1
    components: int = 0
    profile: bytes = b""
    bare: bool = False
    offset: int = 0
    is_plain: bool = False


def read_header(data: bytes) -> Header | Reject:
    """Read the header of an image file. The chunks of a PNG are checked, too, because its decoder does not."""
    if not data:
        return Reject(Reason.EMPTY, "0 bytes")
    found = sniff(data)
    if found is None:
        name = _name_of_unsupported(data)
        unknown = Reject(Reason.NOT_AN_IMAGE, f"starts with {data[:8].hex()}")
        return Reject(Reason.UNSUPPORTED, f"a file of {name}") if name else unknown
    if found == JPEG:
        return _read_jpeg(data)
    if found == PNM and (plain := _PLAIN_PNM.match(data)):
        components = 1 if plain[1] == b"5" else 3
        return Header(PNM, int(plain[2]), int(plain[3]), components=components, offset=plain.end(), is_plain=True)
    if found == WEBP:
        return _read_webp(data)
    chunks = png.read_chunks(data) if found == PNG else None
    if isinstance(chunks, Reject):
        return chunks
    header = _read_by_pillow(data, found)
    if isinstance(header, Reject):
        return header
    if chunks is None:
        profile = _profile(data, found)
        return profile if isinstance(profile, Reject) else replace(header, profile=profile)
    return replace(
        header,
        orientation=_stored_orientation(chunks.exif, chunks.xmp),
        components=chunks.components,
        profile=chunks.profile,
        bare=chunks.bare,
        is_plain=chunks.bare and chunks.components > 0,
    )


def is_maybe_plain(data: bytes) -> bool:
    """True if the file may be plain (`Header.is_plain`), and `read_header` is cheap and safe for it."""
    return data.startswith((jpeg.SIGNATURE, png.SIGNATURE)) or _PLAIN_PNM.match(data) is not None


def sniff(data: bytes) -> str | None:
    """Return the format that the first bytes belong to, or None."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WEBP
    if _brands(data) & _AVIF_BRANDS:
        return AVIF
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return BMP
    if _PNM.match(data, 0, _MAX_PNM_BYTES):
        return PNM
    return next((name for signature, name in _SIGNATURES if data.startswith(signature)), None)


def _brands(data: bytes) -> set[bytes]:
    """Return the major and the compatible brands of a file of boxes (ISO/IEC 14496-12, section 4.3), or no brands."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4]), _MAX_BRANDS_BYTES)
    return {data[start : start + 4] for start in (8, *range(16, end, 4))}


def _name_of_unsupported(data: bytes) -> str:
    """Return the name of a known format that is not decoded; empty for other files."""
    if data.startswith(_JPEG_XL):
        return "JPEG XL"
    return next((name for name, known in _OTHER_BRANDS.items() if _brands(data) & known), "")


@contextmanager
def open_image(data: bytes, format: str) -> Iterator[ImageFile.ImageFile]:
    """Open the image by Pillow's plugin for this format.

    The plugin is called directly, because `Image.open` hides why it rejects a file. A PNG is opened without what is not
    its picture, a BMP in a form that Pillow can read. Warnings about odd metadata are not shown. Pillow raises any kind
    of exception for a damaged file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _plugin(format)(io.BytesIO(_PLAINER.get(format, bytes)(data)), "") as image:
            yield image


_PLAINER: Mapping[str, Callable[[bytes], bytes]] = {PNG: png.without_extras, BMP: bmp.readable_by_pillow}


def _plugin(format: str) -> Callable[[io.BytesIO, str], ImageFile.ImageFile]:
    Image.preinit()
    if format.upper() not in Image.OPEN:
        Image.init()
    return Image.OPEN[format.upper()][0]


def reject_for(error: Exception, data: bytes, format: str) -> Reject:
    """Make a reject of a decoder's exception, by its words. Raises MemoryError for one about memory: the limit."""
    text = _ADDRESS.sub("", str(error)) or type(error).__name__
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        raise MemoryError(text) from None
    if format == JPEG_2000 and (count := jpeg_2000.component_count(data)) > _MAX_COMPONENTS:
        return Reject(Reason.UNSUPPORTED, f"{count} components in a jpeg2000")
    clearer = next((plain for words, plain in _CLEARER.items() if words in text), "")
    if format == TIFF and "string index out of range" in text:  # in Pillow's table of names of planes
        clearer = "separate planes of a kind that is not supported"
    if not clearer and format == TIFF and isinstance(error.__cause__, KeyError):  # Pillow's table of compressions
        clearer = f"compression {text} is not supported"
    text = clearer or text
    if isinstance(error, EOFError) or _TRUNCATED.search(text):
        return Reject(Reason.TRUNCATED, text)
    return Reject(Reason.UNSUPPORTED if _UNSUPPORTED.search(text) else Reason.BROKEN, text)


def _profile(data: bytes, format: str) -> bytes | Reject:
    """Return the profile of a file's colours if Pillow does not find it; empty if there is none."""
    if format == BMP:
        return bmp.embedded_profile(data)
    if format == JPEG_2000:
        return jpeg_2000.embedded_profile(data)
    found = _CODES.search(data, 0, _MAX_META_BYTES) if format == AVIF else None
    if not found or any(kind in data[:_MAX_META_BYTES] for kind in (b"colrprof", b"colrrICC")):
        return b""
    primaries, curve = map(int.from_bytes, found.groups())
    return icc.profile_of_codes(primaries, curve)


def _read_jpeg(data: bytes) -> Header | Reject:
    found = jpeg.read_segments(data)
    if isinstance(found, Reject):
        return found
    return Header(
        JPEG,
        found.width,
        found.height,
        orientation=_stored_orientation(found.exif, found.xmp),
        components=0 if found.lossless else found.components,
        profile=found.profile,
        bare=found.bare,
        offset=found.scan,
        is_plain=found.sequential and found.components in (1, 3) and not found.profile,
    )


def _read_webp(data: bytes) -> Header | Reject:
    found = webp.read_chunks(data)
    if isinstance(found, Reject):
        return found
    return Header(WEBP, found.width, found.height, found.frames, _stored_orientation(found.exif, found.xmp))


def _read_by_pillow(data: bytes, format: str) -> Header | Reject:
    try:
        with open_image(data, format) as image:
            orientation = 1 if format == PNG else _tiff_orientation(image) if format == TIFF else 0
            orientation = orientation or _orientation(image.getexif) or 1  # for a PNG, getexif decodes the whole file
            return Header(format, *image.size, _count_frames(image), orientation)
    except Exception as error:
        return reject_for(error, data, format)


def _tiff_orientation(image: ImageFile.ImageFile) -> int:
    """Return the orientation of the XMP packet if there is no tag, else 1: Pillow itself applies the tag."""
    xmp, tag = image.info.get("xmp"), getattr(image, "tag_v2", {}).get(ORIENTATION)
    if isinstance(tag, bytes):  # of type BYTE, which Pillow does not apply
        return 0
    return _stored_orientation(b"", xmp) if tag is None and isinstance(xmp, bytes) else 1


def _count_frames(image: ImageFile.ImageFile) -> int:
    """Count the frames; 1 if the file is damaged behind the first, because only the first is used."""
    try:
        return getattr(image, "n_frames", 1)
    except MemoryError:
        raise
    except Exception:  # Pillow raises any kind
        return 1


def _stored_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation of EXIF, else of an XMP packet (XMP specification, part 2, section 3.2), else 1."""
    return (_orientation(partial(_load_exif, exif)) if exif else 0) or (
        int(found[1]) if (found := _XMP_ORIENTATION.search(xmp)) else 1
    )


def _load_exif(segment: bytes) -> Image.Exif:
    found = Image.Exif()
    found.load(segment)
    return found


def _orientation(read: Callable[[], Image.Exif]) -> int:
    """Return the orientation of EXIF, or 0; damaged EXIF is ignored, because the picture may be right."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = read().get(ORIENTATION)
            value = value[0] if isinstance(value, bytes) and value else value  # written as a BYTE
    except MemoryError:
        raise
    except Exception:  # Pillow raises any kind
        return 0
    return int(value) if value is not None and value in range(1, 9) else 0
