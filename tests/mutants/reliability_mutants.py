"""Errors in checkpoints, the log's chain, resume and guards."""

from mutant import Mutant

CORRUPTION = "reliability/test_corruption.py"
LOG = "reliability/test_log_truth.py"
RESUME = "reliability/test_exact_resume.py"
GUARDS = "reliability/test_guards.py"
STALE = "reliability/test_stale_rollouts.py"
AHEAD = "training/test_rollout_queue.py"
POINTS = "reliability/test_crash_points.py"
ORDER = f"{POINTS}::test_the_order_of_writing_and_forcing"
EVERY_STEP = f"{RESUME}::test_at_every_step_of_two_epochs"
SHARDS = "reliability/test_shards.py"
STORED = "reliability/test_stored_rollouts.py"
BEAT = "reliability/test_heartbeat.py"
CODE = "reliability/test_foreign_code.py"
PROTOCOL = "training/state/checkpoint_folder.py"
SAVED = "training/state/contents.py"
DATA = "        for path in files_in(temporary):\n            fs.fsync(path)\n"
MANIFEST = """        manifest = describe(temporary, step, known)
        (temporary / MANIFEST).write_text(manifest.text(), encoding="utf-8")
        fs.fsync(temporary / MANIFEST)
"""

RELIABILITY = (
    Mutant(
        "M17 the log not cut at resume", "runlog/log.py",
        "fs.truncate(path, position.num_bytes)", "fs.fsync(path)", f"{LOG}::test_what_is_cut_off_is_kept",
    ),
    Mutant(
        "M18 the cut a byte off", "runlog/log.py",
        "fs.truncate(path, position.num_bytes)", "fs.truncate(path, position.num_bytes - 1)",
        f"{LOG}::test_what_is_cut_off_is_kept",
    ),
    Mutant(
        "M19 prev unchecked", "runlog/log.py",
        'if record["prev"] != head:', 'if record["prev"] is None:', f"{LOG}::test_a_changed_log_is_refused",
        "edited or reordered",
    ),
    Mutant(
        "M20 NaN allowed in the log", "runlog/log.py",
        "ensure_ascii=True, allow_nan=False)", "ensure_ascii=True, allow_nan=True)",
        f"{LOG}::test_what_is_hashed_holds_no_nan",
    ),
    Mutant(
        "M21 seq restarts", "runlog/log.py",
        "self.seq, self.num_bytes, self.head = seq, num_bytes, head",
        "self.seq, self.num_bytes, self.head = 0, num_bytes, head", f"{LOG}::test_going_on_writes_the_same_bytes",
    ),
    Mutant(
        "M22 a bad whole line taken for a torn one", "runlog/log.py",
        "raise BrokenLine(number, str(error)) from error", "return head",
        f"{LOG}::test_a_broken_line_is_named",
    ),
    Mutant(
        "a torn end kept", "runlog/log.py", 'whole = data.rfind(b"\\n") + 1', "whole = len(data)",
        f"{LOG}::test_cut_at_every_byte_of_the_last_two_lines",
    ),
    Mutant(
        "M23 data not forced to the disk", PROTOCOL,
        "            fs.fsync(path)\n        manifest", "            pass\n        manifest", ORDER,
    ),
    Mutant(
        "M24 the manifest first", PROTOCOL,
        f"{DATA}{MANIFEST}", f"{MANIFEST}{DATA}", ORDER,
    ),
    Mutant("M23 the manifest not forced", PROTOCOL, "fs.fsync(temporary / MANIFEST)", "pass", ORDER),
    Mutant("M23 the folder not forced", PROTOCOL, "        fs.fsync(temporary)\n", "", ORDER),
    Mutant("M23 the new name not forced", "runlog/fs.py", "    fsync(target.parent)\n", "", ORDER),
    Mutant(
        "M25 sha256 unchecked", "training/state/checkpoint_folder.py",
        "if found.text() != text:", "if found.files.keys() != recorded['files'].keys():",
        f"{CORRUPTION}::test_every_flipped_bit_is_refused",
    ),
    Mutant(
        "additional files accepted", "training/state/checkpoint_folder.py",
        "if found.text() != text:", "if any(found.files.get(n) != file for n, file in recorded['files'].items()):",
        f"{CORRUPTION}::test_other_damage_is_refused", "added",
    ),
    Mutant(
        "an empty folder replaced in silence", PROTOCOL, "if os.path.lexists(target):\n            with suppress",
        "if False:\n            with suppress", f"{CORRUPTION}::test_saving_where_a_checkpoint_is_already",
    ),
    Mutant(
        "M26 files deleted under the checkpoint's name", PROTOCOL,
        "            fs.rename(path, doomed)\n            fs.remove_tree(doomed)", "            fs.remove_tree(path)",
        ORDER,
    ),
    Mutant(
        "M27 generators not restored", SAVED, "restore_generators(load_file(folder / GENERATORS))", "pass",
        EVERY_STEP, "gspo",
    ),
    Mutant(
        "M28 optimizer not restored", "training/state/tensors.py",
        'read_into(optimizer.state[known[name]][moment], value, f"{name}|{moment}")', "pass", EVERY_STEP, "gspo",
    ),
    Mutant(
        "the critic not restored", SAVED, "learner.critic.restore(load_pieces(folder, CRITIC))", "pass",
        EVERY_STEP, "ppo",
    ),
    Mutant(
        "a share without its place in the tensor", "training/state/shards.py",
        'return {f"{name}@{first}": own_part(tensor)} if end > first else {}',
        'return {f"{name}@0": own_part(tensor)} if end > first else {}',
        f"{SHARDS}::test_what_is_saved_travels_byte_for_byte", "2-3",
    ),
    Mutant(
        "a checkpoint named before all ranks have written", "training/state/shards.py",
        "if refusals := [text for *_, refused in shares for text in refused]:",
        "if refusals := why:", f"{SHARDS}::test_a_refused_write_is_told_and_costs_no_other_checkpoint", "1",
    ),
    Mutant(
        "portions of the data forgotten", SAVED,
        "session.prompt_batches, session.updates = state.step, state.portions,",
        "session.prompt_batches, session.updates = state.step, 0,", EVERY_STEP, "gspo",
    ),
    Mutant(
        "batches sampled ahead forgotten", SAVED,
        "session.rollout_queue.extend(load_queue(folder, state.step, state.ahead))", "pass",
        f"{STALE}::test_resume_at_every_step",
    ),
    Mutant(
        "stored batches of the queue cut off", "training/run_folder.py",
        "point.state.step + point.state.ahead", "point.state.step", f"{STALE}::test_resume_at_every_step",
    ),
    Mutant(
        "a half-sampled queue in the state", "training/rollout_queue.py",
        "batch, prompt_batches = sample_batch(session, number, version, prompt_batches)",
        "batch, session.prompt_batches = sample_batch(session, number, version, session.prompt_batches); "
        "prompt_batches = session.prompt_batches",
        f"{AHEAD}::test_what_is_sampled_stays_out_of_the_state_until_all_of_it_is_there",
    ),
    Mutant(
        "M29 a silent fall-back", "training/state/resume.py",
        'emit(Noted(f"warning: {path} was refused: {why}"))', "pass",
        f"{CORRUPTION}::test_the_older_one_is_used_and_that_is_said",
    ),
    Mutant(
        "M32 the count of refused updates not restored", SAVED,
        "session.guards.counts.update(state.guards)", "pass", f"{GUARDS}::test_the_limit_holds_across_a_resume",
    ),
    Mutant(
        "a changed recipe accepted", "training/state/run_config.py",
        "if key not in allowed or not key.startswith(MAY_CHANGE)]", "if False]",
        f"{RESUME}::test_a_changed_recipe_is_shown_and_refused",
    ),
    Mutant(
        "another start model accepted", "training/run_folder.py", "if record[key] != value:", "if False:",
        f"{RESUME}::test_another_start_model_is_refused",
    ),
    Mutant(
        "a state that is not finite saved", SAVED, "if bad is not None:", "if False:",
        f"{GUARDS}::test_a_state_that_is_not_finite_is_never_saved",
    ),
    Mutant(
        "a failed reward counted as wrong", "tasks/rewards.py",
        "return Score(None, f\"{who} failed:",
        "return Score(0.0, f\"{who} failed:",
        f"{GUARDS}::test_a_reward_that_fails_is_left_out_and_counted", "raises",
    ),
    Mutant(
        "a stored batch's hash unchecked", "report/verify.py",
        "elif sha256_of(path) != sha256:", "elif False:",
        f"{STORED}::test_each_is_hashed_in_the_events_and_its_change_is_named",
    ),
    Mutant(
        "another host's sign of life ignored", "runlog/lock.py", "and age_s < SILENT_S", "and False",
        f"{BEAT}::test_another_hosts_sign_of_life_holds_the_run",
    ),
    Mutant(
        "a heartbeat written in place", "runlog/lock.py", "write_text(self.folder / HEARTBEAT, json.dumps(writer",
        "(self.folder / HEARTBEAT).write_text(json.dumps(writer",
        f"{BEAT}::test_it_is_replaced_whole_while_the_run_works",
    ),
    Mutant(
        "a model's code run unasked", "models/remote_code.py", 'return {"trust_remote_code": False}',
        'return {"trust_remote_code": True}', f"{CODE}::test_it_is_not_run_unasked",
    ),
    Mutant(
        "changed code run under the old revision", "models/remote_code.py",
        "(found := code_revision(Path(source))) != _allowed",
        "(found := code_revision(Path(source))) == 0", f"{CODE}::test_what_was_read_is_run_and_recorded",
    ),
    Mutant(
        "missing weights invented", "models/load.py",
        'require_same_weights(source, *from_files(device_map="meta", **REPORTED))', "pass",
        "reliability/test_untrusted.py::test_a_weight_that_is_not_in_the_files_is_not_invented",
    ),
    Mutant(
        "a full disk ends the run", "training/state/checkpoints.py",
        "except REFUSED as error:\n            self.missed(session, session.step, error)",
        "except ZeroDivisionError as error:\n            self.missed(session, session.step, error)",
        f"{GUARDS}::test_a_full_disk_lets_training_go_on_and_is_told_at_the_end",
    ),
)  # fmt: skip
