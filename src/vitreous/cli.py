"""The command line, generated from the commands' signatures and docstrings."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import logging
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

import vitreous
from vitreous.commands.types import Result
from vitreous.core.errors import VitreousError, did_you_mean, nearest_names
from vitreous.core.printable import printable, printable_lines
from vitreous.core.progress import say, silence
from vitreous.core.untrusted_json import json_line

GROUPS = {
    "start": ("demo", "list"),
    "data": ("doctor", "choose", "shard"),
    "train": ("pretrain", "finetune"),
    "measure": ("evaluate", "fewshot", "vtab", "study", "bench"),
    "look inside": ("inspect", "verify"),
    "deploy": ("predict", "embed", "similar", "serve", "convert"),
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)

EXIT_CODES = {  # docs/reference/command-line.md
    "0": "done",
    "1": "done, with a negative result",
    "2": "invalid command or input",
    "130, 143": "interrupted, progress saved",
}
SHELLS = ("bash", "zsh", "fish")

_SYNONYMS = {  # what people type for a command, in whole words
    "finetune": "train fit tune transfer fine-tune adapt linear-probe probe lora",
    "pretrain": "train scratch pre-train",
    "evaluate": "eval test val valid validate accuracy score measure compare",
    "predict": "infer inference classify run apply label",
    "embed": "features embeddings embedding extract encode vectors index",
    "similar": "search nearest neighbours neighbors retrieve retrieval cluster clusters kmeans k-means query find",
    "inspect": "explain attention visualize visualise rollout saliency look",
    "fewshot": "knn few-shot ridge shots",
    "convert": "export save onnx timm huggingface import",
    "choose": "active-learning active annotate annotation labelling labeling select next sample",
    "doctor": "check lint duplicates clean deduplicate dedup audit",
    "list": "models weights recipes data datasets ls show zoo",
    "serve": "server web ui app api dashboard runs tensorboard",
    "shard": "tar webdataset pack",
    "verify": "diff",
    "study": "experiment experiments paper ablation ablations grid",
    "bench": "benchmark speed throughput latency profile",
    "demo": "example tutorial quickstart start",
}

_FIELD_SYNONYMS = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "opt": "optimizer",
    "drop_path": "stochastic_depth",
    "label_smoothing": "smoothing",
    "ema": "average",
    "warmup_steps": "warmup",
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        for name in ("SIGTERM", "SIGHUP"):  # to leave as Ctrl-C does: what is half written is removed
            if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(getattr(signal, name), _terminate)
    try:
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"]
        if not words or words[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if words[0] == "--version":
            return _print_version(words[1:])
        if words[0].partition("=")[0] == "--completion":
            return _print_completion(words[0].partition("=")[2] or " ".join(words[1:]))
        if words[0] not in COMMANDS:
            raise _unknown_command(words[0])
        return _run(words[0], words[1:])
    except VitreousError as error:
        rank = os.environ.get("RANK", "0")  # of several processes, each may have a trouble of its own
        _complain(f"{'' if rank == '0' else f'process {rank}: '}{error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except _Terminated as ended:
        _complain("terminated")
        return 128 + int(ended.args[0])
    except MemoryError:
        _complain("out of memory; use a smaller model, image or batch size")
        return 2
    except BrokenPipeError:  # the reader has left, as `| head` does; there is nobody to print for
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that is too long, a folder that may not be read
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        return 2


def _unknown_command(word: str) -> VitreousError:
    if word.startswith("-"):
        return VitreousError(f"{word}: the command comes first, as in `vitreous predict ... {word}`: {', '.join(COMMANDS)}")
    meant = [name for name, words in _SYNONYMS.items() if word.casefold() in words.split()]
    hint = f"use {' or '.join(map(repr, meant))}" if meant else did_you_mean(word, COMMANDS).rstrip()
    return VitreousError(f"unknown command {word!r}; " + (hint or f"the commands are {', '.join(COMMANDS)}"))


class _Terminated(BaseException):
    """Asked to end; carries the signal."""


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise _Terminated(number)


def load_command(name: str) -> Callable[..., Result]:
    function: Callable[..., Result] = getattr(importlib.import_module(f"vitreous.commands.{name}"), name)
    return function


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Of the parameters, not of the result: its module is imported only when the command runs."""
    texts = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=texts), vars(sys.modules[function.__module__]), include_extras=True)


def _run(name: str, words: Sequence[str]) -> int:
    log = logging.getLogger("vitreous")
    log.addFilter(_no_notes)  # results carry their notes, which are printed below
    try:
        call, as_json, quiet = _parse(name, words)
        with silence(quiet):
            result = call()
    finally:
        log.removeFilter(_no_notes)
    # A result with `lines` is made while it is printed: it may be larger than memory, and its reader need not wait for the end.
    lines: Callable[[], Iterable[str]] | None = getattr(result, "lines", None)
    with silence(quiet):
        known = _tell(result.notes)
        if as_json:
            for record in result.records():
                print(json_line(record, sys.stdout.encoding or "utf-8"), flush=lines is not None)
        elif lines is not None:
            for line in lines():  # where nothing is to be said, it is made all the same
                if not quiet:
                    print(_shown(line, data=True), flush=True)
        elif not quiet:
            print(_shown(re.sub(r"\n{3,}", "\n\n", result.text()).rstrip("\n")))  # a table ends with an empty line
        _tell(result.notes[known:])  # what was only known at the end
        return int(result.exit_code)


def _tell(notes: Sequence[str]) -> int:
    for note in notes:
        say(f"note: {note}")
    return len(notes)


def _parse(name: str, words: Sequence[str]) -> tuple[Callable[[], Result], bool, bool]:
    """What is to be called, whether its result is shown as JSON, and whether it is silent."""
    function = _with_output_options(load_command(name))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _plain_help():
            return tyro.cli(function, prog=f"vitreous {name}", args=words, config=_STYLE)
    except SystemExit as leave:
        if not leave.code:  # --help
            raise
    raise VitreousError(_parse_error(name, function, said.getvalue()))


@contextlib.contextmanager
def _plain_help() -> Iterator[None]:
    """Where NO_COLOR is set, help goes through a buffer: tyro colours what it writes to a terminal, whatever NO_COLOR says."""
    if not os.environ.get("NO_COLOR"):
        yield
        return
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            yield
    finally:
        print(shown.getvalue(), end="")


def _parse_error(name: str, function: Callable[..., Any], box: str) -> str:
    """The parser draws a box of several lines; below its title, up to the first rule, it says what is wrong."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box).translate(str.maketrans("│─╰╯", " ---"))
    groups = itertools.groupby(plain.splitlines()[1:], lambda line: not line.strip(" -"))
    lines = next((list(group) for rule, group in groups if not rule), [plain])
    text = " ".join(" ".join(lines).split())
    more = f"`vitreous {name} --help` lists the options"
    if text.startswith("Missing from "):
        missing = [line.split()[0] for line in lines if re.match(r" {6}\S", line)]  # their help is indented further
        example = re.search(r"Example: (.*)", function.__doc__ or "")
        return f"{' and '.join(missing)} missing" + (f"; for example: {example[1]}" if example else "")
    if found := re.match(r"Unrecognized options: (\S+)", text):
        word = found[1].rstrip(",").partition("=")[0]
        if not word.startswith("-"):
            several = "=" in found[1] and "--set" in _flags(function)
            hint = "write several changes as --set a=1,b=2 or --set a=1 --set b=2" if several else more
            return f"unexpected argument {found[1].rstrip(',')!r}; {hint}"
        close = nearest_names(word.lstrip("-"), [flag[2:] for flag in _flags(function)])  # two dashes in common are no hint
        hint = _recipe_field(word, function) or (f"did you mean '--{close[0]}'? " if close else "")
        return f"unknown option {word!r}; {hint}{more}"
    if found := re.match(r"Error parsing (\S+): .*?((?:INT|int\(\)|FLOAT|float).*?)'(.*?)'", text):
        return f"{found[1]} {found[3]!r}: must be a {'whole number' if found[2].lower().startswith('int') else 'number'}"
    if found := re.match(r"invalid choice (.*?) for argument '(.*?)'\. Expected one of \((.*)\)", text):
        where = f"{found[2]} " if found[2].startswith("-") else ""
        choices = sorted({*re.findall(r"'(.*?)'", found[3])} - {"None"})
        return f"{where}{found[1]}: must be one of {', '.join(choices)}"
    if found := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{found[1]}: its value is missing; {more}"
    return f"{text.removeprefix('Error parsing ')}; {more}"


def _recipe_field(word: str, function: Callable[..., Any]) -> str:
    """What to write for an option that other programs have and that is a field of the recipe here."""
    if "--set" not in _flags(function):
        return ""
    from vitreous.training.recipes.recipe import Recipe

    name = word.lstrip("-").replace("-", "_")
    name = _FIELD_SYNONYMS.get(name, name)
    return f"write it as --set {name}=VALUE; " if name in Recipe.__dataclass_fields__ else ""


def _flags(function: Callable[..., Any]) -> list[str]:
    options = inspect.signature(function).parameters.values()
    return [f"--{'no-' if each.default is True else ''}{each.name.rstrip('_').replace('_', '-')}" for each in options]


def _no_notes(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def _complain(message: str) -> None:
    print(printable(f"vitreous: {message}", sys.stderr.encoding or "utf-8"), file=sys.stderr)


def _shown(text: str, data: bool = False) -> str:
    """A result's text. It has made the names in it printable; here is a second net, which lets only colours pass.

    What may be `data` for a program, as CSV, stays as it is where no terminal reads it.
    """
    encoding = sys.stdout.encoding or "utf-8"
    if not sys.stdout.isatty():
        return text.encode(encoding, "backslashreplace").decode(encoding) if data else printable_lines(text, encoding)
    return "".join(
        part if at % 2 else printable_lines(part, encoding) for at, part in enumerate(re.split("(\x1b\\[[0-9;]*m)", text))
    )


_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone)


def _with_output_options(function: Callable[..., Result]) -> Callable[..., tuple[Callable[[], Result], bool, bool]]:
    """The command with `--json` and `--quiet`, which say how its result is shown and are no business of the function's.

    Called, it does nothing yet: what is typed is checked before anything is done.
    """
    hints = parameter_types(function)
    extra = {
        "json": Annotated[bool, tyro.conf.arg(help="print the result as JSON, one object a line.")],
        "quiet": Annotated[bool, tyro.conf.arg(help="print nothing but errors.")],
    }
    parameters = list(inspect.signature(function).parameters.values())
    optional = _training_options(function.__name__) if parameters and parameters[-1].kind is _MORE else {}
    if optional:  # of those that may be given by position in Python, too, the types and help texts stand there
        parameters = [parameter for parameter in parameters[:-1] if parameter.name not in optional]

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Callable[[], Result], bool, bool]:
        as_json, quiet = kwargs.pop("json"), kwargs.pop("quiet")
        if os.environ.get("RANK", "0") != "0":  # one of several processes that torchrun started: the first one speaks
            as_json, quiet = False, True
        given = {key: value for key, value in kwargs.items() if key not in optional or value is not _default(optional[key])}
        return functools.partial(function, *args, **given), as_json, quiet

    del wrapped.__wrapped__  # or tyro would look through to the bare function
    wrapped.__doc__ = re.sub(r"\n {8}(?=\S)", " ", inspect.getdoc(function) or "")  # or lines would break where the source's do
    only = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    every = [
        *(parameter.replace(annotation=hints[parameter.name]) for parameter in parameters),
        *(only(key, default=_default(hint), annotation=hint) for key, hint in optional.items()),
        *(only(key, default=False, annotation=hint) for key, hint in extra.items()),
    ]
    every = [parameter.replace(annotation=_with_default_said(parameter)) for parameter in every]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    wrapped.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    return wrapped


def _with_default_said(parameter: inspect.Parameter) -> Any:
    """A default in the words of the command line: (default: None) or (default: True) are Python's."""
    own = [note.help_behavior_hint for note in get_args(parameter.annotation)[1:] if hasattr(note, "help_behavior_hint")]
    nothing = parameter.default is None or (isinstance(parameter.default, Sequence) and not parameter.default)
    if any(own) or not (nothing or isinstance(parameter.default, bool)):
        return parameter.annotation
    hint = "" if nothing else f"(default: {'on' if parameter.default else 'off'})"
    return Annotated[parameter.annotation, tyro.conf.arg(help_behavior_hint=hint)]


_MORE = inspect.Parameter.VAR_KEYWORD


def _training_options(command: str) -> dict[str, Any]:
    """The options of `**options: Annotated[Any, TrainOptions]`. One that is not given is None, and is not passed on."""
    from vitreous.training.options import command_line_options

    found = {}
    for name, annotated in command_line_options(command).items():
        bare, *notes = get_args(annotated)
        found[name] = annotated if _default(annotated) is not None else Annotated[(bare | None, *notes)]
    return found


def _default(hint: Any) -> Any:
    """What stands for an option that was not given: False for a flag, () for a repeatable option, else None."""
    bare = get_args(hint)[0]
    return False if bare is bool else () if get_origin(bare) is tuple else None


def _print_version(words: Sequence[str]) -> int:
    if words not in ([], ["--verbose"]):
        raise VitreousError(f"unexpected {' '.join(words)!r}; `vitreous --version --verbose` prints what a bug report needs")
    if words:
        from vitreous.commands.environment import describe_environment

        print(printable_lines(describe_environment(vitreous.__version__), sys.stdout.encoding or "utf-8"))
    else:
        print(f"vitreous {vitreous.__version__}")
    return 0


def _print_completion(shell: str) -> int:
    """A script that completes commands, options and their values; tyro writes it from the same signatures."""
    if shell not in SHELLS:
        raise VitreousError(f"--completion {shell!r}: must be one of {', '.join(SHELLS)}")
    functions = {name: _with_output_options(load_command(name)) for name in COMMANDS}
    script = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(script):
        arguments = ["--tyro-write-completion", shell, "-"]
        tyro.extras.subcommand_cli_from_dict(functions, prog="vitreous", args=arguments, config=_STYLE, sort_subcommands=False)
    # None says that an optional choice is not given: nothing to type.
    print(script.getvalue().replace("'None', ", "").replace(", 'None'", ""))
    return 0


def _overview() -> str:
    """All commands on one screen of 80 columns, grouped by task."""
    codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    lines = ["usage: vitreous COMMAND ... [--json] [--quiet]", ""]
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<9} {(inspect.getdoc(load_command(name)) or '').splitlines()[0]}" for name in names]
    return "\n".join(
        [
            *lines,
            "",
            "`vitreous COMMAND --help` explains a command and shows an example.",
            f"`vitreous --completion {'|'.join(SHELLS)}` prints a script for tab completion.",
            "`vitreous --version --verbose` prints what a bug report needs.",
            *textwrap.wrap(f"Exit codes: {codes}.", width=80, subsequent_indent="  "),
            "Example: vitreous predict hf:google/vit-base-patch16-224 cat.jpg",
        ]
    )
