"""The `rekey` command: a table of subcommands, each imported when it is called.

`rekey --help` therefore imports nothing heavy.  Exit status of every command: 0 done; 2 bad
arguments or bad input (one line per problem); 3 some items failed and are listed; 75 asked to stop,
the same line continues; 1 anything else that a person has to look at (a full disk, a lost worker).
"""

from __future__ import annotations

import errno
import importlib
import sys

import click

from rekey import __version__
from rekey.errors import InputError, Interrupted, WorkerLost

EXIT_INPUT, EXIT_SOME_FAILED, EXIT_RESUMABLE = 2, 3, 75

COMMANDS = {
    "demo": ("experiments.cli_demo", "Renew real photographs, swap an image, audit two models; a page to open."),
    "slots": ("experiments.cli_slots", "Annotations: check, preview, measure, import, label-config."),
    "sample": ("experiments.cli_sample", "Draw sampling records and questions for a seed; no pixels."),
    "generate": ("experiments.cli_generate", "Make a fresh, certified benchmark instance from slots and images."),
    "editors": ("experiments.cli_editors", "What can draw the edits: weights, licenses, settings; what is here."),
    "merge": ("experiments.cli_merge", "Join the shards of a generated instance."),
    "scenes": ("experiments.cli_scenes", "Draw scenes with questions and slots: a benchmark to renew."),
    "evaluate": ("experiments.cli_evaluate", "Put a benchmark to a model: local, in vLLM, or behind a server."),
    "audit": ("experiments.cli_audit", "Is the score memory or sight? Original against renewed responses."),
    "regrade": ("experiments.cli_audit", "Grade stored responses again, by either parser."),
    "pairs": ("experiments.cli_pairs", "Swap pairs: build them, check them, how alike they are."),
    "probe": ("experiments.cli_probe", "Swap the image under a model's reasoning: does it look again?"),
    "attend": ("experiments.cli_attend", "Attention traces of stored trials: every layer, head and step."),
    "plot": ("experiments.cli_plot", "Figures and readable case files of a folder of trials."),
    "items": ("experiments.cli_items", "Import and export benchmarks: V*Bench, VLMEvalKit, lmms-eval."),
    "controls": ("experiments.cli_controls", "Small models whose behavior is known: list, export, score, train."),
    "doctor": ("experiments.cli_doctor", "What is here and what is missing, before a job starts."),
}


class ReportedErrors:
    """Mixed into a command: what goes wrong is told in one line each, with an exit status that scripts can act on."""

    def invoke(self, ctx: click.Context) -> object:
        name = ctx.find_root().command.name
        try:
            return super().invoke(ctx)
        except InputError as error:
            for problem in error.problems:
                click.echo(f"{name}: {problem}", err=True)
            ctx.exit(EXIT_INPUT)
        except Interrupted as stop:
            click.echo(f"{name}: stopped, {stop}; run the same line again to go on", err=True)
            ctx.exit(EXIT_RESUMABLE)
        except KeyboardInterrupt:
            click.echo(f"{name}: stopped; run the same line again", err=True)
            ctx.exit(EXIT_RESUMABLE)
        except WorkerLost as error:
            click.echo(f"{name}: {error}", err=True)
            ctx.exit(1)
        except OSError as error:
            if error.errno == errno.EPIPE:          # `rekey sample ... | head`
                sys.stderr.close()
                ctx.exit(1)
            if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
                click.echo(f"{name}: {error.filename}: {error.strerror}; give another path", err=True)
                ctx.exit(EXIT_INPUT)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            click.echo(f"{name}: {error.strerror}: {error.filename or 'while writing'}; make room (or get access) and "
                       "run the same line again", err=True)
            ctx.exit(1)


class LazyGroup(ReportedErrors, click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(COMMANDS[name][0]), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group("rekey", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rekey")
def main() -> None:
    """Probe open-weight vision-language models: is the score memory or sight?

    \b
    Start here:  rekey demo --out demo
    Your data:   rekey slots check slots.jsonl --images photos
                 rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/seed1
    A model:     rekey evaluate --items runs/seed1 --model NAME --out responses/seed1.jsonl
                 rekey audit --original responses/original.jsonl --renewed responses/seed1.jsonl --out audit
    """


if __name__ == "__main__":
    main()
