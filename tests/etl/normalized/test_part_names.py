"""What parts are called, and which pack they are of."""

import pytest

from etl.normalized.parts import Origin, pack_of

PACK = {"name": "pack-00007", "sha256": "a" * 64, "list_sha256": "b" * 64}


def test_a_part_is_called_like_its_pack_and_then_numbered() -> None:
    first = Origin.of_pack(PACK)
    names = [first, first.next(), first.next().next()]
    assert [each.part for each in names] == ["pack-00007", "pack-00007.1", "pack-00007.2"]
    assert {each.pack for each in names} == {"pack-00007"}
    assert [Origin.of_part(each.to_json()) for each in names] == names
    assert "pack" not in first.to_json()


@pytest.mark.parametrize(("facts", "pack"), [({"part": "p"}, "p"), ({"part": "p.1", "pack": "p"}, "p")])
def test_the_pack_of_a_part(facts: dict[str, str], pack: str) -> None:
    assert pack_of(facts) == pack


def test_a_pack_may_have_dots_and_numbers_in_its_name() -> None:
    odd = Origin.of_pack(PACK | {"name": "v1.2"}).next().next()
    assert (odd.part, odd.pack) == ("v1.2.2", "v1.2")
