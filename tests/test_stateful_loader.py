"""torchdata's StatefulDataLoader resumes by its own state, and to the last bit."""

import pytest
import torch
from data_runs import Numbers, read

from eventloop.data import SeededDataset

pytestmark = pytest.mark.integration


def loader(workers, own_generator):
    from torchdata.stateful_dataloader import StatefulDataLoader

    generator = torch.Generator().manual_seed(5) if own_generator else None
    data = SeededDataset(Numbers(9, noise=True))
    return StatefulDataLoader(data, batch_size=2, shuffle=True, num_workers=workers, generator=generator)


def checkpoint_of(folder, step):
    return folder / "checkpoints" / f"step-{step:08d}"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("workers", "steps"), [(0, range(1, 99)), (2, (2, 3, 5, 6))])
def test_cut_anywhere_it_goes_on_with_the_rest(tmp_path, caplog, workers, steps, accumulate, own_generator):
    options = {"max_epochs": 3, "accumulate": accumulate}
    torch.manual_seed(1)
    whole = read(tmp_path / "whole", loader(workers, own_generator), **options)
    for step in set(steps) & set(whole.at):
        torch.manual_seed(2)
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), loader(workers, own_generator), resume=path, seed=99, **options)
        assert rest.batches == whole.batches[whole.at[step] :], step
        assert rest.weights == whole.weights
    assert all(whole.ids(epoch) == list(range(9)) for epoch in (1, 2, 3))
    assert not any("wound" in text for text in caplog.messages)
