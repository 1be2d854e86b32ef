import math
from fractions import Fraction

import pytest

from etl.images.geometry import FITS, Box, Plan, Size, make_plan

SIDES = [(1, 1), (16, 16), (100, 50), (50, 100), (375, 500), (3, 1000), (224, 320), (3000, 4001), (17, 23)]
TARGETS = [(16, 16), (24, 16), (224, 224), (1, 7), (256, 341)]
PAIRS = [(Size(*source), Size(*target)) for source in SIDES for target in TARGETS]


@pytest.mark.parametrize("only_shrink", [False, True])
@pytest.mark.parametrize("fit", FITS)
def test_every_plan_stays_within_its_image_and_its_canvas(fit: str, only_shrink: bool) -> None:
    for source, target in PAIRS:
        plan = make_plan(source, target, fit, only_shrink)
        assert 0 <= plan.box.top < plan.box.bottom <= source.height
        assert 0 <= plan.box.left < plan.box.right <= source.width
        for axis in (0, 1):
            assert plan.size[axis] >= 1
            assert 0 <= plan.offset[axis] <= plan.canvas[axis] - plan.size[axis]
            assert not only_shrink or plan.size[axis] <= plan.box.sides[axis]
        if fit == "pad" or (fit in ("crop", "exact") and not only_shrink):
            assert plan.canvas == target


def test_crop_keeps_the_targets_shape_from_the_centre() -> None:
    for source, target in PAIRS:
        plan = make_plan(source, target, "crop")
        kept = plan.box.sides
        scale = min(source.height / target.height, source.width / target.width)
        assert all(abs(kept[axis] - max(1, scale * target[axis])) <= 0.5 for axis in (0, 1))
        assert source in {(kept[0], source.width), (source.height, kept[1])}  # one side is kept whole
        assert plan.box.top - (source.height - plan.box.bottom) in (0, -1)
        assert plan.box.left - (source.width - plan.box.right) in (0, -1)


@pytest.mark.parametrize(
    ("source", "target", "fit", "size", "canvas"),
    [
        ((375, 500), (256, 256), "shorter", (256, 341), (256, 341)),
        ((375, 500), (256, 256), "longest", (192, 256), (192, 256)),
        ((375, 500), (256, 256), "pad", (192, 256), (256, 256)),
        ((1000, 3), (256, 256), "longest", (256, 1), (256, 1)),
        ((400, 600), (100, 200), "shorter", (133, 200), (133, 200)),  # covers 100x200
        ((400, 600), (100, 200), "longest", (100, 150), (100, 150)),  # fits into it
    ],
)
def test_sizes(source: Size, target: Size, fit: str, size: Size, canvas: Size) -> None:
    plan = make_plan(Size(*source), Size(*target), fit)
    assert (plan.size, plan.canvas) == (size, canvas)
    assert plan.box == (0, 0, *source)


def test_only_shrink_enlarges_nothing() -> None:
    def shrunk(source: Size, fit: str) -> Size:
        return make_plan(source, Size(200, 200), fit, only_shrink=True).size

    assert {shrunk(Size(100, 50), fit) for fit in FITS} == {(100, 50)}
    assert make_plan(Size(10, 5), Size(16, 16), "pad", only_shrink=True).offset == (3, 5)  # in the centre
    assert shrunk(Size(500, 50), "exact") == shrunk(Size(500, 50), "crop") == (200, 50)
    assert (shrunk(Size(800, 400), "crop"), shrunk(Size(800, 400), "shorter")) == ((200, 200), (400, 200))


def test_what_fits_changes_nothing() -> None:
    for fit in FITS:
        assert make_plan(Size(16, 16), Size(16, 16), fit).changes_nothing
        assert not make_plan(Size(16, 17), Size(16, 16), fit).changes_nothing or fit == "shorter"
    assert make_plan(Size(16, 17), Size(16, 16), "shorter").changes_nothing


def test_the_least_source_leaves_the_box_its_pixels() -> None:
    for source, target in PAIRS:
        for fit in FITS:
            plan = make_plan(source, target, fit)
            least = plan.least_source(2)
            for axis in (0, 1):
                kept = plan.box.sides[axis] / source[axis] * least[axis]
                assert kept >= 2 * plan.size[axis] - 1e-9
                assert kept < 2 * plan.size[axis] + math.ceil(plan.box.sides[axis] / source[axis])


def test_a_plan_of_a_reduced_source_ends_within_its_last_pixels() -> None:
    plan = make_plan(Size(3000, 4000), Size(256, 256), "crop")
    reduced = plan.of_reduced(Size(750, 1000))
    assert reduced == Plan(Size(750, 1000), Box(0, 125, 750, 875), plan.size, plan.canvas)
    plan = make_plan(Size(427, 640), Size(100, 150), "exact")  # 427 * 3 / 8 is 160 and an eighth
    assert plan.of_reduced(Size(161, 240)).box == Box(0, 0, Fraction(1281, 8), 240)
    assert plan.of_reduced(Size(161, 240), (True, False)).box == Box(Fraction(7, 8), 0, 161, 240)
    assert plan.of_reduced(Size(200, 300)).box == Box(0, 0, 200, 300)  # no eighths
    crop = make_plan(Size(427, 640), Size(50, 50), "crop").of_reduced(Size(107, 160), (False, True))
    assert crop.box == Box(0, Fraction(53, 2), Fraction(427, 4), Fraction(533, 4))
