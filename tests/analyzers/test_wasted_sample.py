"""wasted-sample: what samples computed that were loaded again, as a part of the waits for batches."""

import pytest

from diagnose.model.capture import CaptureInfo
from diagnose.model.loaded import ExpressionRecord, LoadedRecord
from diagnose.model.records import LoaderRecord

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
WHOLE = ExpressionRecord(file="data.py", line=7, text="table()", what="float32 (9,)", ns=500, own_ns=500)


def info(*expressions, comes_again=True, size=10):
    loaded = LoadedRecord(samples=1, total_ns=1000, dataset_size=size, narrow=True, expressions=expressions)
    return CaptureInfo(loaded=loaded, loader=LoaderRecord(comes_again=comes_again))


def row(**fields):
    return ExpressionRecord(**{name: getattr(WHOLE, name) for name in WHOLE.__struct_fields__} | fields)


@pytest.fixture
def booked(late):
    def book(known, name=SINGLE):
        late.annotation(name, 300, 690)
        late.info = known
        return late.booked()

    return book
