"""One short file per command: typed arguments in, parts below called, a typed result out.

A verb is a function. The command line is generated from its signature and docstring (cli.py), so the two cannot
drift. Heavy imports stand inside the functions: `vitreous --help` must not wait for torch.

A result knows how to show itself: `text()` for people, `records()` for `--json` (one object a line), `notes` for what
was assumed or changed on the way (the command line says them on standard error), and `exit_code`, which is 1 when the
answer is bad news.
"""
