"""The process of a traced script, at its end."""

import gc

from diagnose.capture.process.launch import skip_collections


def test_a_file_that_only_a_cycle_holds_is_flushed(tmp_path):
    written = tmp_path / "log.txt"
    holder = [written.open("w")]
    holder.append(holder)
    holder[0].write("the last line")
    before = gc.get_freeze_count()
    try:
        skip_collections()
        assert gc.get_freeze_count() > before
        assert written.read_text() == "the last line"
    finally:
        gc.unfreeze()
        holder[0].close()
