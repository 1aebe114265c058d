"""graphc as a backend of torch.compile."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import graphc.torch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield


def compiled(model, **options):
    return torch.compile(model, backend=graphc.torch.backend, options=options or None)


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

    def forward(self, x):
        return torch.softmax(self.layers(x), -1)


def test_a_model_gives_pytorchs_numbers_and_does_not_fall_back():
    model = Perceptron().eval()
    fast = compiled(model, threads=2)
    x = torch.randn(3, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", graphc.torch.FallbackWarning)
        torch.testing.assert_close(fast(x), model(x), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(fast(2 * x), model(2 * x), atol=1e-5, rtol=1e-4)


def test_sizes_stay_open():
    model = Perceptron().eval()
    fast = compiled(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", graphc.torch.FallbackWarning)
        for rows in (2, 3, 5, 7):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), model(x), atol=1e-5, rtol=1e-4)


def test_several_inputs_and_outputs():
    def function(x, y):
        return x + y, (x * y).sum(-1), x.int()

    fast = compiled(function)
    x, y = torch.randn(4, 5), torch.randn(5)
    with torch.no_grad():
        for got, expected in zip(fast(x, y), function(x, y)):
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected)


def test_what_graphc_cannot_take_runs_in_pytorch_and_is_named():
    def function(x):
        return torch.linalg.eigvalsh(x) + 1

    x = torch.eye(3)
    with torch.no_grad(), pytest.warns(graphc.torch.FallbackWarning, match="eigvalsh|linalg_eigh|_linalg_eigh"):
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_gradients_fall_back():
    model = Perceptron()
    x = torch.randn(3, 8)
    with pytest.warns(graphc.torch.FallbackWarning, match="no_grad"):
        y = compiled(model)(x)
    y.sum().backward()
    assert model.layers[0].weight.grad is not None


def test_a_wrong_option_is_an_error():
    with torch.no_grad(), pytest.raises(Exception, match="did you mean"):
        compiled(Perceptron().eval(), thread=2)(torch.randn(3, 8))
