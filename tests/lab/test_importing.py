"""The user's own code: found in the current folder, and every mistake in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.importing import imported, users_code

SOURCE = {
    "users_module": "def factory(): return 7\nfactory_of_nets = factory\nnumber = 3\n",
    "users_lazy": "def factory():\n    from users_module import number\n    return number\n",
    "users_exit": "import sys; sys.exit()\n",
    "users_error": "raise RuntimeError('first line\\nsecond line')\n",
    "users_silent": "raise AssertionError\n",
    "users_syntax": "def factory(:\n",
    "users_attribute": "def __getattr__(name): raise RuntimeError('no ' + name)\n",
    "users_interrupt": "raise KeyboardInterrupt\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A current folder with modules. Neither the path nor the loaded modules are changed."""
    monkeypatch.chdir(tmp_path)
    for name, text in SOURCE.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in SOURCE:
        sys.modules.pop(name, None)


def test_an_object_of_the_current_folder() -> None:
    assert imported("users_module:factory")() == 7
    assert imported("users_module:number") == 3


def test_a_call_may_import_more() -> None:
    factory = imported("users_lazy:factory")
    with users_code("the factory raised"):
        assert factory() == 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("users_module", "expected package.module:factory, got 'users_module'"),
        (":factory", "expected package.module:factory, got ':factory'"),
        ("users_module:", "expected package.module:factory, got 'users_module:'"),
        ("nowhere:f", "'nowhere' cannot be imported: ModuleNotFoundError: No module named 'now"),
        (".relative:f", "'.relative' cannot be imported: TypeError: "),
        ("users_module:factry", "'users_module' has no 'factry'; did you mean 'factory'?"),
        ("users_module:vgg", "'users_module' has no 'vgg'; there are factory, factory_of_nets"),
        ("users_exit:f", "'users_exit' cannot be imported: SystemExit: no message"),
        ("users_error:f", "'users_error' cannot be imported: RuntimeError: first line"),
        ("users_silent:f", "'users_silent' cannot be imported: AssertionError: no message"),
        ("users_syntax:f", "'users_syntax' cannot be imported: SyntaxError: invalid syntax"),
        ("users_attribute:f", "'users_attribute' cannot be imported: RuntimeError: no f"),
    ],
)
def test_a_mistake_is_one_line(target: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        imported(target)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_exit_in_a_call_is_an_error() -> None:
    function = imported("sys:exit")
    message = "'sys:exit' raised SystemExit: no message"
    with pytest.raises(UserError, match=message), users_code("'sys:exit' raised"):
        function()


def test_ctrl_c_still_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        imported("users_interrupt:f")
