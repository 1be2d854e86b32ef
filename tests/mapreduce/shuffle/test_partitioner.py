import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.shuffle.partitioner import PREFIX_BYTES, PROPERTIES, partition_prefix, reducer_of


@given(reducers=st.integers(1, 3000), data=st.data())
def test_a_key_goes_to_the_reducer_it_is_made_for(reducers: int, data: st.DataObject) -> None:
    reducer = data.draw(st.integers(0, reducers - 1))
    prefix = partition_prefix(reducer, reducers)
    assert len(prefix) == PREFIX_BYTES
    assert max(prefix) < 128
    assert reducer_of(prefix, reducers) == reducer


@pytest.mark.parametrize(("data", "hashed"), [(b"\0\0\0\0", 923521), (b"abcd", 3910595)])
def test_the_hash_is_hadoops(data: bytes, hashed: int) -> None:
    """31**4 = 923521, and what `WritableComparator.hashBytes` of Hadoop 3.4 gives for "abcd"."""
    assert reducer_of(data, 1 << 31) == hashed


def test_the_properties_are_named_as_hadoop_reads_them() -> None:
    """LEFT_OFFSET_PROPERTY_NAME and RIGHT_OFFSET_PROPERTY_NAME of org.apache.hadoop.mapreduce.lib.partition."""
    prefix = "mapreduce.partition.binarypartitioner"
    assert dict(PROPERTIES) == {f"{prefix}.left.offset": "0", f"{prefix}.right.offset": "3"}
