"""Heatmaps: what they accept, what they show, what they refuse, and that they leave nothing behind."""

from __future__ import annotations

import gc
import io
import pickle
import time
import weakref

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from attendb.errors import InputError, KindError
from attendb.plots import answer_heatmap, show_heatmaps

LIGHT, DARK = (255, 245, 240), (103, 0, 13)  # the ends of the colour map "Reds"


def panels_of(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def bar_of(figure: Figure):
    return next(axes for axes in figure.axes if axes.get_label() == "<colorbar>")


def drawn(figure: Figure) -> list[np.ndarray]:
    return [np.ma.filled(axes.images[0].get_array().astype(float), np.nan) for axes in panels_of(figure)]


def save(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def pixels(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


def colour_at(figure: Figure, axes, row: int, column: int) -> tuple[int, ...]:
    picture = pixels(figure)
    x, y = axes.transData.transform((column, row))
    return tuple(int(c) for c in picture[picture.shape[0] - 1 - int(y), int(x), :3])


def test_identity_has_weight_only_where_query_and_key_are_the_same():
    figure = show_heatmaps(np.eye(10), xlabel="Keys", ylabel="Queries")
    (axes,) = panels_of(figure)
    np.testing.assert_array_equal(drawn(figure)[0], np.eye(10))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Keys", "Queries")
    assert colour_at(figure, axes, 3, 3) == pytest.approx(DARK, abs=2)
    assert colour_at(figure, axes, 3, 4) == pytest.approx(LIGHT, abs=2)


def test_queries_run_down_and_keys_to_the_right():
    weights = np.zeros((2, 5))
    weights[1, 4] = 1.0
    figure = show_heatmaps(weights, "Keys", "Queries")
    (axes,) = panels_of(figure)
    assert axes.get_xlim() == (-0.5, 4.5)
    assert axes.get_ylim() == (1.5, -0.5)  # query 0 on top
    assert colour_at(figure, axes, 1, 4) == pytest.approx(DARK, abs=2)


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_saves_without_a_display(kind, start):
    assert save(show_heatmaps(np.eye(10), "Keys", "Queries"), kind).startswith(start)


def test_notebooks_get_a_png():
    assert show_heatmaps(np.eye(3), "Keys", "Queries")._repr_png_().startswith(b"\x89PNG")


def test_a_figure_can_be_pickled():
    again = pickle.loads(pickle.dumps(show_heatmaps(np.eye(3), "Keys", "Queries")))
    np.testing.assert_array_equal(drawn(again)[0], np.eye(3))


# P01: tensors that are not ready for numpy


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.requires_grad_(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to(torch.float16),
        lambda x: x.to_sparse(),
        lambda x: x.double(),
        lambda x: x.to_sparse_csr(),
        lambda x: x.numpy(),
        lambda x: x.numpy().astype(np.float16),
        lambda x: x.tolist(),
        lambda x: list(x),
        lambda x: x.int(),
        lambda x: x.bool(),
        lambda x: x.T.contiguous().T,
    ],
    ids="grad bf16 fp16 sparse double csr numpy numpy16 lists rows int bool strided".split(),
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_p01_every_kind_of_matrix_draws_the_same(make):
    plain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    np.testing.assert_array_equal(drawn(show_heatmaps(make(plain.clone()), "k", "q"))[0], plain.numpy())


def test_p01_lists_of_tensors_that_learn():
    heads = [[torch.eye(3, requires_grad=True), torch.ones(3, 3, dtype=torch.bfloat16)]]
    assert len(panels_of(show_heatmaps(heads, "k", "q"))) == 2


def test_p01_the_graph_of_the_caller_is_untouched():
    scores = torch.randn(4, 4, requires_grad=True)
    weights = scores.softmax(-1)
    before = weights.detach().clone()
    show_heatmaps(weights, "k", "q")
    assert weights.requires_grad
    assert torch.equal(weights.detach(), before)
    weights[:, 0].sum().backward()
    assert scores.grad is not None


def test_p01_masked_arrays_show_their_gaps():
    array = np.ma.masked_array(np.eye(2), mask=[[False, True], [False, False]])
    assert np.isnan(drawn(show_heatmaps(array, "k", "q"))[0][0, 1])


@pytest.mark.parametrize("bad", [np.array([["a"]]), np.eye(2) * 1j, np.array([[None]])])
def test_entries_that_are_no_real_numbers(bad):
    with pytest.raises(KindError, match="real numbers"):
        show_heatmaps(bad, "k", "q")


# P02: axes and titles


@pytest.mark.parametrize(
    ("shape", "count"), [((3, 5), 1), ((4, 3, 5), 4), ((1, 1, 3, 5), 1), ((2, 3, 3, 5), 6), ((1, 1, 1, 1), 1)]
)
def test_p02_fewer_axes_are_promoted(shape, count):
    assert len(panels_of(show_heatmaps(np.random.rand(*shape), "k", "q"))) == count


@pytest.mark.parametrize("shape", [(), (4,), (1, 2, 2, 3, 3)])
def test_p02_other_axes_say_what_is_expected(shape):
    with pytest.raises(InputError, match=r"have shape \(.*but show_heatmaps takes \(rows, columns, queries, keys\)"):
        show_heatmaps(np.zeros(shape), "k", "q")


@pytest.mark.parametrize("shape", [(0, 1, 3, 3), (1, 0, 3, 3), (1, 1, 0, 3), (3, 0)])
def test_p02_nothing_to_draw(shape):
    with pytest.raises(InputError, match="nothing to draw"):
        show_heatmaps(np.zeros(shape), "k", "q")


def test_p02_ragged_lists():
    with pytest.raises(InputError, match="same queries and keys"):
        show_heatmaps([[[1.0, 0.0]], [[1.0, 0.0, 0.0]]], "k", "q")


def test_p02_one_title_a_column_or_one_a_panel():
    weights = np.random.rand(2, 3, 4, 4)
    titles = [axes.get_title() for axes in panels_of(show_heatmaps(weights, "k", "q", titles=["a", "b", "c"]))]
    assert titles == ["a", "b", "c", "", "", ""]
    for each in (list("abcdef"), [["a", "b", "c"], ["d", "e", "f"]]):
        titles = [axes.get_title() for axes in panels_of(show_heatmaps(weights, "k", "q", titles=each))]
        assert titles == list("abcdef")


@pytest.mark.parametrize("titles", [["a"], ["a", "b"], list("abcd"), list("abcdefg"), [], "abc"])
def test_p02_other_titles_are_refused(titles):
    with pytest.raises(InputError, match="each of the 3 columns, or one for each of the 6 panels, got"):
        show_heatmaps(np.random.rand(2, 3, 4, 4), "k", "q", titles=titles)


def test_p02_labels_only_at_the_outer_edge():
    figure = show_heatmaps(np.random.rand(2, 3, 4, 4), "Keys", "Queries", figsize=(6, 4))
    figure.canvas.draw()
    axes = np.array(panels_of(figure)).reshape(2, 3)
    assert [[a.get_xlabel() for a in row] for row in axes] == [[""] * 3, ["Keys"] * 3]
    assert [[a.get_ylabel() for a in row] for row in axes] == [["Queries", "", ""]] * 2
    assert axes[0, 0].get_shared_x_axes().joined(axes[0, 0], axes[1, 0])
    assert axes[0, 0].get_shared_y_axes().joined(axes[0, 0], axes[0, 2])
    assert not any(label.get_visible() and label.get_text() for label in axes[0, 1].get_xticklabels())
    assert len([a for a in figure.axes if a.get_label() == "<colorbar>"]) == 1


def test_one_bar_over_common_limits():
    weights = np.zeros((1, 2, 2, 2))
    weights[0, 0], weights[0, 1] = 0.25, [[0.0, 0.5], [1.0, 0.25]]
    figure = show_heatmaps(weights, "k", "q", figsize=(5, 2.5))
    assert {axes.images[0].get_clim() for axes in panels_of(figure)} == {(0.0, 1.0)}
    assert bar_of(figure).get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize("figsize", [(0, 1), (1,), "big", (1, float("nan")), None])
def test_bad_figsize(figsize):
    with pytest.raises(InputError, match="figsize must be"):
        show_heatmaps(np.eye(2), "k", "q", figsize=figsize)


def test_bad_colour_map():
    with pytest.raises(InputError, match="cmap must be a matplotlib colour map"):
        show_heatmaps(np.eye(2), "k", "q", cmap="redd")


# P04: constant, zero, NaN and all-masked panels (a warning is an error in these tests)


@pytest.mark.parametrize(
    ("value", "limits"), [(0.25, (0.0, 0.25)), (0.0, (0.0, 1.0)), (-2.0, (-2.0, 0.0)), (np.nan, (0.0, 1.0))]
)
def test_p04_constant_panels_keep_their_value_on_the_bar(value, limits):
    figure = show_heatmaps(np.full((3, 5), value), "k", "q")
    assert save(figure, "png")
    assert bar_of(figure).get_ylim() == limits


def test_p04_rounding_noise_is_not_stretched():
    figure = show_heatmaps(1 / 3 + 1e-9 * np.random.rand(4, 4), "k", "q")
    low, high = bar_of(figure).get_ylim()
    assert low == 0
    assert high == pytest.approx(1 / 3)


def test_p04_nan_is_a_neutral_grey():
    weights = np.array([[0.0, 1.0], [np.nan, 0.5]])
    figure = show_heatmaps(weights, "k", "q")
    red, green, blue = colour_at(figure, panels_of(figure)[0], 1, 0)
    assert red == green == blue
    assert 150 < red < 230


def test_p04_infinite_scores_take_the_end_colours():
    figure = show_heatmaps(np.array([[-np.inf, 0.0, 1.0, np.inf]]), "k", "q")
    np.testing.assert_array_equal(drawn(figure)[0], [[0.0, 0.0, 1.0, 1.0]])


def test_p04_a_masked_panel_beside_a_good_one():
    weights = np.stack([np.full((3, 3), np.nan), np.eye(3), np.zeros((3, 3))])
    figure = show_heatmaps(weights, "k", "q", figsize=(7, 2.5))
    assert save(figure, "svg")
    assert bar_of(figure).get_ylim() == (0.0, 1.0)


# P05: large inputs


def test_p05_a_large_matrix_is_a_small_quick_image():
    weights = np.zeros((1, 1, 5000, 5000), dtype=np.float32)
    weights[0, 0, 1234, 4321] = 1.0  # one cell of 25 million stays visible
    start = time.perf_counter()
    figure = show_heatmaps(weights, "k", "q")
    svg = save(figure, "svg")
    assert time.perf_counter() - start < 10
    assert len(svg) < 5_000_000
    assert b"<image" in svg
    (axes,) = panels_of(figure)
    assert axes.get_xlim() == (-0.5, 4999.5)
    cells = drawn(figure)[0]
    assert max(cells.shape) <= 2000
    assert cells.max() == 1
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    left, right, _, top = axes.images[0].get_extent()
    step = (right - left) / cells.shape[1]
    assert left + column * step <= 4321 <= left + (column + 1) * step
    assert top + row * step <= 1234 <= top + (row + 1) * step


def test_p05_blocks_at_the_ragged_edge_and_with_gaps():
    weights = np.full((3, 2001), 0.5)
    weights[0, :100], weights[2, 2000] = np.nan, 1.0
    figure = show_heatmaps(weights, "k", "q")
    cells = drawn(figure)[0]
    assert np.isnan(cells[0, 0])
    assert cells[2, -1] == 1.0
    assert cells[1].min() == cells[1].max() == 0.5
    assert panels_of(figure)[0].get_xlim() == (-0.5, 2000.5)


def test_p05_too_many_panels():
    with pytest.raises(InputError, match=r"192 panels, but at most 100 are drawn: choose some"):
        show_heatmaps(np.zeros((16, 12, 2, 2)), "k", "q")


def test_p05_two_hundred_calls_leak_nothing():
    import matplotlib.pyplot as plt

    mine = plt.figure()
    try:
        figures = [weakref.ref(show_heatmaps(np.eye(3), "k", "q")) for _ in range(200)]
        gc.collect()
        assert sum(figure() is not None for figure in figures) == 0
        assert plt.get_fignums() == [mine.number]  # nothing registered, and the caller's own left open
    finally:
        plt.close(mine)


# Answer.heatmap


@pytest.mark.parametrize(
    ("shape", "count", "size"),
    [
        ((5,), 1, (2.5, 2.5)),
        ((3, 5), 1, (2.5, 2.5)),
        ((4, 3, 5), 4, (10, 2.5)),
        ((2, 4, 3, 5), 8, (10, 5)),
        ((3, 2, 4, 3, 5), 24, (10, 15)),
        ((10, 1, 3, 5), 10, (2.5, 20)),
    ],
)
def test_answers_draw_their_leading_axes_as_panels(shape, count, size):
    figure = answer_heatmap(torch.rand(*shape, requires_grad=True))
    assert len(panels_of(figure)) == count
    assert tuple(figure.get_size_inches()) == size
    assert panels_of(figure)[-1].get_xlabel() == "Keys"
