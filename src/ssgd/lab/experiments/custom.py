"""Your own model and your own folder of images: a recipe without a name, and what must hold before it is trained."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data import NAMES
from ..data.corpora import is_speech
from ..data.faults import Faults
from ..data.folder import listed, pillow
from ..data.text import is_text
from ..models import MODELS, build
from ..train.building import check_kind
from ..train.recipe import Recipe

METHODS = ("base", "both", "split")  # what is compared where nothing else is asked for


def custom(model: str, data: str, with_test: bool = True) -> Recipe:
    """30 epochs and three seeds, the rate falling in a cosine; the batch fits the folder, the images fit the model.

    Without ``with_test`` the test images are not looked for.
    """
    known = MODELS.get(model)
    size = known.image_size if known and known.image_size else Recipe.image_size
    images = _images(data, with_test)
    return Recipe(
        name=f"{_place(data)}/{model.replace(':', '.')}",
        model=model,
        data=data,
        image_size=size,
        batch=next(batch for batch in (64, 32, 16, 8, 4) if batch * 4 <= images or batch == 4),
        phases="30",
        lr=(0.05,),
        anneal="cosine",
        weight_decay=5e-4,
        seeds=(0, 1, 2),
    )


def _place(data: str) -> str:
    """A folder's path, from here where it lies below: no two folders share a name, nor the runs of one the other's."""
    folder = Path(data).expanduser().resolve()
    here = Path.cwd().resolve()
    return (folder.relative_to(here) if here in folder.parents else folder.relative_to(folder.anchor)).as_posix()


def check(recipe: Recipe) -> None:
    """The model takes the images and tells as many classes as there are, or a sentence says what to change."""
    check_kind(recipe.model, recipe.data, "images")
    pillow()
    classes = len(listed(Path(recipe.data).expanduser(), Faults("skip"), held_out=recipe.held_out).classes)
    size = recipe.image_size
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = build(recipe.model, classes).eval()
        try:
            found = net(torch.zeros(2, 3, size, size))
        except RuntimeError as problem:
            reason = str(problem).split("\n")[0]
            raise ValueError(
                f"{recipe.model} cannot take images of 3×{size}×{size} ({reason}): image_size=N gives it 3×N×N"
            ) from problem
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != (2, classes):
        raise ValueError(
            f"{recipe.model} makes {shape} of two images: let it return a tensor of {(2, classes)}, a number for each"
            f" class of {recipe.data}; the function is called with the number of classes"
        )


def _images(data: str, with_test: bool) -> int:
    """How many training images the folder has; it must be one of images, of more than one class."""
    folder = Path(data).expanduser()
    if data in NAMES:
        raise ValueError(
            f"{data} is no folder: `ssgd recipes` lists recipes for it, to be given another model by model="
        )
    if not folder.is_dir():
        raise ValueError(f"{data} is not there: --data takes a folder with train/<class>/*.jpg and val/<class>/*.jpg")
    for is_kind, kind, recipe in ((is_text, "text", "words"), (is_speech, "speech", "utterances")):
        if is_kind(folder):
            vary = f"--vary method={','.join(METHODS)}"
            raise ValueError(f"{data} is a folder of {kind}: write ssgd compare {recipe} data={data} {vary}")
    kept = 0 if with_test else 1
    files = listed(folder, Faults("skip"), held_out=kept)
    if len(files.classes) == 1:
        raise ValueError(
            f"{folder / 'train'} has one class only, {files.classes[0]}: make a folder for each class, so that there is"
            " something to tell apart"
        )
    return len(files.train) + kept
