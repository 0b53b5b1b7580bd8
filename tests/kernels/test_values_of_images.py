"""What is known of each image of a state: ranges that stand for one value for each image."""

from hypothesis import given
from hypothesis import strategies as st

from mpsgrad import CommandBuffer
from mpsgrad.kernels.values_of_images import ValuesOfImages

RANGES = st.tuples(st.integers(0, 7), st.integers(0, 4)).map(lambda pair: range(pair[0], sum(pair)))


@given(st.lists(st.tuples(RANGES, st.sampled_from(("a", "b", None)))), RANGES)
def test_ranges_say_what_a_value_for_each_image_says(changes, asked):
    kept: ValuesOfImages[str] = ValuesOfImages()
    model: dict[int, str | None] = {}
    for images, value in changes:
        kept.set(CommandBuffer(), images, value)
        model |= dict.fromkeys(images, value)
    assert [kept.get(image) for image in range(12)] == [model.get(image) for image in range(12)]
    assert {*kept.values(asked)} == {model.get(image) for image in asked}
    assert sorted((image, value) for images, value in kept.images() for image in images) == sorted(
        (image, value) for image, value in model.items() if value is not None
    )


def test_what_was_noted_of_work_that_is_taken_back_is_forgotten():
    kept: ValuesOfImages[str] = ValuesOfImages()
    commands = CommandBuffer()
    kept.set(commands, range(3), "before")
    try:
        with commands._all_or_nothing():
            kept.set(commands, range(1, 2), "after")
            kept.set(commands, range(3), None)
            raise ValueError
    except ValueError:
        assert [*kept.images()] == [(range(3), "before")]
