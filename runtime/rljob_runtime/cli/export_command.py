"""The command `rljob export`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.cli.output import exit_on_error, print_text
from rljob_runtime.errors import ConfigError


class ExportType(StrEnum):
    """Types that a model can be exported in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT", help="A run's folder, or one checkpoint in it."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A folder to be made.")],
    dtype: Annotated[
        ExportType | None, typer.Option(help="Type of the weights; default: as they were trained.")
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="Of a run's best checkpoint (spec.checkpoint.keepBest)."),
    ] = False,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="The adapters alone, in PEFT's format (spec.update.lora)."),
    ] = False,
) -> None:
    """Write the trained model as a Hugging Face directory, with its tokenizer, adapters merged."""
    import torch

    from rljob_runtime.models.export import export_adapter, export_model

    with exit_on_error():
        if adapter and dtype:
            raise ConfigError("--dtype is for merged weights; leave it or --adapter out")
        if adapter:
            print_text(f"{target}: the adapters of {export_adapter(source, target, best=best)}")
            return
        of_type = getattr(torch, dtype) if dtype else None
        model = export_model(source, target, dtype=of_type, best=best)
    print_text(f"{target}: the model of {model}")
