"""Policies to and from a Hugging Face repository.

What travels is a run folder without its replay and its training state of the end: recipe, spec, log, best checkpoint,
newest film, and a card. It is loaded before it counts as pulled, with all the checks of a stranger's run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetfoot import api, extras
from fleetfoot.checkpoint.read import read_pointer
from fleetfoot.checkpoint.version import library
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import open_plain
from fleetfoot.run.folder import read_recipe

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
# All that is ever taken from a repository. A name with other characters, or another folder, is left there.
WANTED = re.compile(
    r"(recipe|spec|provenance)\.json|metrics\.jsonl|checkpoints/best\.json"
    r"|checkpoints/best-[0-9-]{9,28}/[\w-]{1,60}\.(json|safetensors)|videos/[\w-]{1,60}\.(mp4|gif)",
    re.ASCII,
)
MOST_BYTES = 8 << 30  # of one run; the largest policy here has some MB
MOST_FILES = 1_000
REFUSALS = {  # HTTP status -> what it means here
    401: "it does not exist, or you are not logged in (hf auth login, or HF_TOKEN)",
    403: "your token may not do this",
    404: "there is no such repository or revision",
}


@dataclass(frozen=True)
class Pushed:
    """What was uploaded."""

    address: str
    files: int
    bytes: int


def push(folder: Path, repo: str, *, public: bool = False, message: str = "") -> Pushed:
    """Upload the best policy of a run. The repository is made if there is none: private, unless `public`."""
    check_name(repo)
    hub = library_of_hub()
    files = to_push(folder)
    policy_works(folder)
    with tempfile.TemporaryDirectory(prefix="fleetfoot-push-") as name:
        staged = Path(name)
        for path in files:
            copy(folder / path, staged / path)
        (staged / "README.md").write_text(card(hub, folder, repo), encoding="utf-8")
        size = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
        with talking(repo):
            client = hub.HfApi(endpoint=endpoint(), library_name="fleetfoot")
            address = client.create_repo(repo, private=not public, exist_ok=True)
            client.upload_folder(
                repo_id=repo,
                folder_path=staged,
                commit_message=message or f"fleetfoot push {folder.name}",
                delete_patterns=["checkpoints/*", "videos/*"],  # of an earlier push
            )
    return Pushed(str(address), len(files) + 1, size)


def to_push(folder: Path) -> list[Path]:
    """The files of a run that travel, relative to its folder."""
    recipe = read_recipe(folder)
    pointer = read_pointer(folder / "checkpoints", "best")
    if pointer is None or pointer["score"] is None:
        raise UserError(
            f"{folder} has no best checkpoint to push: {recipe.name} was not evaluated yet."
        )
    best = Path("checkpoints") / pointer["folder"]
    found = [Path("recipe.json"), Path("spec.json"), Path("metrics.jsonl"), Path("provenance.json")]
    found += [Path("checkpoints/best.json"), *(best / p.name for p in (folder / best).glob("*"))]
    videos = [p for p in (folder / "videos").glob("*") if WANTED.fullmatch(f"videos/{p.name}")]
    newest = max(videos, key=lambda path: path.stat().st_mtime, default=None)
    found += [] if newest is None else [Path("videos") / newest.name]
    return [path for path in found if (folder / path).is_file() and WANTED.fullmatch(str(path))]


def card(hub: Any, folder: Path, repo: str) -> str:
    """The page of the repository."""
    recipe = read_recipe(folder)
    score = read_pointer(folder / "checkpoints", "best")["score"]
    task = recipe.name.rpartition("/")[2]
    result = hub.EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=task,
        dataset_name=task,
        metric_type="mean_reward",
        metric_value=float(score),
    )
    facts = hub.ModelCardData(
        library_name="fleetfoot",
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "fleetfoot", recipe.name.partition("/")[0]],
        model_name=repo.partition("/")[2],
        eval_results=[result],
    )
    return f"""---
{facts.to_yaml()}
---

# {repo.partition("/")[2]}

A policy for `{recipe.name}`, trained with fleetfoot {library()}. Mean return of its best evaluation: {score:,.1f}
({recipe.evaluation.episodes} episodes, seed {recipe.seed}).

    fleetfoot pull {repo} --folder {repo.partition("/")[2]}
    fleetfoot evaluate {repo.partition("/")[2]}
    fleetfoot record {repo.partition("/")[2]}

The recipe is in `recipe.json`, the log of the training in `metrics.jsonl`.
"""


def pull(repo: str, folder: Path | None = None, *, revision: str | None = None) -> Path:
    """Download a run to a new folder. Nothing is left where it cannot be loaded."""
    check_name(repo)
    hub = library_of_hub()
    place = Path("runs") / repo.partition("/")[2] if folder is None else folder
    if place.exists() and (place.is_file() or any(place.iterdir())):
        raise UserError(f"{place} exists and is not empty; give another --folder.")
    with writing(place), in_the_making(place) as staged:
        with talking(repo):
            client = hub.HfApi(endpoint=endpoint(), library_name="fleetfoot")
            info = client.model_info(repo, revision=revision, files_metadata=True)
            wanted = chosen(repo, info.siblings or [])
            hub.snapshot_download(
                repo,
                revision=info.sha,  # the files that were looked at, whatever is pushed meanwhile
                local_dir=staged / "download",
                allow_patterns=wanted,
                endpoint=endpoint(),
            )
        for name in wanted:
            copy(staged / "download" / name, staged / "run" / name)
        policy_works(staged / "run", repo)
        if place.exists():
            place.rmdir()
        os.replace(staged / "run", place)
    return place


def chosen(repo: str, siblings: list[Any]) -> list[str]:
    """The names of the files to download. UserError where they are no run, or too much."""
    names = [one.rfilename for one in siblings if WANTED.fullmatch(one.rfilename)]
    if "recipe.json" not in names or "checkpoints/best.json" not in names:
        raise UserError(f"{repo} has no fleetfoot run: there is no recipe.json with a checkpoint.")
    sizes = [one.size for one in siblings if one.rfilename in names]
    if any(type(size) is not int or size < 0 for size in sizes):
        raise UserError(f"{repo} does not say how large its files are.")
    if sum(sizes) > MOST_BYTES or len(names) > MOST_FILES:
        raise UserError(
            f"{repo} has {len(names):,} files of {sum(sizes):,} bytes, which is more than a run may have."
        )
    return names


def copy(source: Path, target: Path) -> None:
    """A plain file, piece by piece. UserError if it is a link or too large."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_plain(source, most=MOST_BYTES) as file, target.open("xb") as out:
        shutil.copyfileobj(file, out)


def policy_works(folder: Path, repo: str = "") -> None:
    """UserError unless the policy in a run folder can be loaded."""
    try:
        api.load_policy(folder)
    except UserError as error:
        text = str(error).replace(str(folder), repo) if repo else str(error)
        raise UserError(text) from error


@contextlib.contextmanager
def in_the_making(place: Path) -> Iterator[Path]:
    """A folder beside `place` that is gone in the end."""
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".pull-", suffix=".partial", dir=place.parent))
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def check_name(repo: str) -> None:
    if not REPO.fullmatch(repo):
        raise UserError(f"{repo!r} is not a repository name; write USER/NAME, as in lab/walker.")


def endpoint() -> str | None:
    """Another server than huggingface.co, as its own tools let one choose."""
    return os.environ.get("HF_ENDPOINT") or None


def library_of_hub() -> Any:
    what = "push and pull need huggingface_hub"
    hub = extras.load("huggingface_hub", "hub", what)
    extras.load("huggingface_hub.utils", "hub", what).disable_progress_bars()
    return hub


@contextlib.contextmanager
def talking(repo: str) -> Iterator[None]:
    """What goes wrong on the way to the server and back becomes one line.

    Every exception: the library raises its own, those of its HTTP client, and those of the system.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = REFUSALS.get(status or 0) or one_line(error).rstrip(".")
        raise UserError(f"Hugging Face, {repo}: {why}.") from error
