"""Speech through the engine: error rates, Adam and S-SGD Adam, resume in the middle of an epoch."""

from dataclasses import replace

import pytest

from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.job import Job, Sources

from .test_train_language import cut_it_ends_the_same

SPEECH = replace(get("utterances"), phases="1-1", train_limit=48)


def test_it_learns_to_hear(tmp_path):
    (result,) = train(get("utterances"), Execution(out=str(tmp_path), progress=False))
    assert result["test_wer"] < 20 and result["test_cer"] < 20  # a net that says nothing has 100
    assert {"valid_loss", "valid_cer", "valid_wer", "test_loss"} <= set(result)


@pytest.mark.parametrize("method", ["base", "both", "split"])
def test_cut_in_mid_epoch_it_ends_the_same(tmp_path, method):
    cut_it_ends_the_same(tmp_path, replace(SPEECH, method=method), (3,))


def test_the_base_is_adam(tmp_path):
    execution = Execution(out=str(tmp_path), progress=False)
    job = Job(replace(SPEECH, method="both"), 0, execution, Ranks(), print)
    job.begin(Sources(execution))
    assert type(job.run.opt.base).__name__ == "Adam"
    job.close()
