"""Provide drawn items: a picture, a question, an exact answer. Item i depends only on the seed plus i."""

import io
from random import Random

from PIL import Image

from rljob_api.spec.workload import DrawnData
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.pictures.drawing import MOST_LEVEL, draw
from rljob_runtime.task.pictures.picture import RowPicture
from rljob_runtime.task.pictures.processor import PLACEHOLDER


class DrawnItems:
    """The endless items of one kind with one seed."""

    def __init__(self, source: DrawnData, *, seed: int) -> None:
        self._source, self._seed = source, seed

    def __getitem__(self, index: int) -> Question:
        source, seed = self._source, self._seed + index
        rng = Random(seed)
        task, level = rng.choice(source.tasks), min(source.level, MOST_LEVEL)
        drawing = draw(rng, task=task, level=level, side=source.side)
        content = _file_of(drawing.image)
        blank = Image.new("RGB", drawing.image.size, "white")
        picture = RowPicture(
            row=f"spec.data.drawn: seed {seed}",
            row_key="images[0]",
            content=_file_of(blank) if source.blank else content,
            size=drawing.image.size,
            drawn=content if source.blank else b"",
        )
        return Question(
            fields={"question": f"{PLACEHOLDER}{drawing.question}", "task": task},
            answer=drawing.answer,
            entry={"task": task, "level": level, "seed": seed},
            pictures=(picture,),
        )


def _file_of(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
