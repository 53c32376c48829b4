"""Items that are drawn: a picture, a question, an exact answer. Item i is made of the seed plus i alone."""

import io
from random import Random

from PIL import Image

from rljob_api.spec.workload import DrawnData
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.pictures.drawing import MOST_LEVEL, draw
from rljob_runtime.task.pictures.picture import RowPicture
from rljob_runtime.task.pictures.processor import PLACEHOLDER


class DrawnItems:
    """The endless items of one kind under one seed."""

    def __init__(self, source: DrawnData, *, seed: int) -> None:
        self._source, self._seed = source, seed

    def __getitem__(self, index: int) -> Question:
        source, seed = self._source, self._seed + index
        rng = Random(seed)
        task, level = rng.choice(source.tasks), min(source.level, MOST_LEVEL)
        made = draw(rng, task=task, level=level, side=source.side)
        drawn = _file_of(made.image)
        blank = Image.new("RGB", made.image.size, "white")
        picture = RowPicture(
            row=f"spec.data.drawn: seed {seed}",
            place="images[0]",
            content=_file_of(blank) if source.blank else drawn,
            size=made.image.size,
            drawn=drawn if source.blank else b"",
        )
        return Question(
            fields={"question": f"{PLACEHOLDER}{made.question}", "task": task},
            answer=made.answer,
            entry={"task": task, "level": level, "seed": seed},
            pictures=(picture,),
        )


def _file_of(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
