"""The wire form of everything that is stored, frozen: what was written by any release must still be read.

A literal here changes only together with a migration. Tags are snake_case; defaults are left out.
"""

from __future__ import annotations

import json
from typing import get_args

import pytest

from perdure.codec import decode, encode
from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId, EffectId, InputId, PromiseId, Seq, SessionId, StreamId, TurnId, WorkerId
from perdure.inbox import items
from perdure.vocab import causes, messages, processes, promises, records, schedules, triggers
from perdure.vocab import effects as e
from perdure.vocab import outcomes as o
from perdure.vocab import registrations as r
from perdure.vocab.tools import Composition, Durability, RetryPolicy, ToolContract, ToolDefinition, ToolHints
from perdure.vocab.usage import Usage

T, C = TurnId("t1"), CallId("t1.1.0")
REF = messages.AttachmentRef(hash=BlobHash("h1"), media_type="image/png", size=3)
KEY = promises.EventKey(scope="s1", wait=promises.Custom(key="ok"), key_id=PromiseId("k1"), signature="sig")
CALL = e.PreparedToolCall(call_id=C, tool_id="tool:refund", tool_name="refund", args={"cents": 5})
DONE = o.Done(result=o.CompletedToolCall(call_id=C, tool_name="refund", output=o.Success(value="ok")))
SCOPE = processes.SessionScope(session_id="s1")

RECORDS: list[tuple[records.Record, str]] = [
    (records.SessionOpened(agent="billing"), '{"type":"session_opened","agent":"billing"}'),
    (
        records.SessionOpened(
            agent="writer",
            parent=records.Parent(
                stream=StreamId("d:session:s"),
                root=StreamId("d:session:r"),
                handle="h",
                turn=T,
                depth=2,
                background=True,
            ),
        ),
        '{"type":"session_opened","agent":"writer","parent":{"stream":"d:session:s","root":"d:session:r","handle":"h",'
        '"turn":"t1","depth":2,"background":true}}',
    ),
    (
        records.ChildClaimed(
            number=2, handle="h", token="k", task="d", parent=StreamId("d:session:s"), turn=T, live=(1,)
        ),
        '{"type":"child_claimed","number":2,"handle":"h","token":"k","task":"d","parent":"d:session:s","turn":"t1",'
        '"live":[1]}',
    ),
    (
        records.ChildRegistered(handle="h", token="k", child=SessionId("sub-1"), asked=T),
        '{"type":"child_registered","handle":"h","token":"k","child":"sub-1","asked":"t1"}',
    ),
    (
        records.ChildEnded(child=SessionId("sub-1"), turn=T, status="finished", usage=Usage(input=3, calls=1)),
        '{"type":"child_ended","child":"sub-1","turn":"t1","status":"finished","usage":{"input":3,"calls":1}}',
    ),
    (
        records.InputAdmitted(input=InputId("i1"), turn=T, parts=(messages.Text(text="hi"),)),
        '{"type":"input_admitted","input":"i1","turn":"t1","parts":[{"type":"text","text":"hi"}]}',
    ),
    (
        records.InputAdmitted(input=InputId("i1"), turn=T, parts=(messages.ImagePart(ref=REF),), key="w-1"),
        '{"type":"input_admitted","input":"i1","turn":"t1","parts":[{"type":"image","ref":{"hash":"h1","media_type":'
        '"image/png","size":3}}],"key":"w-1"}',
    ),
    (
        records.InputAdmitted(input=InputId("i1"), turn=T, parts=(), by_session=True),
        '{"type":"input_admitted","input":"i1","turn":"t1","parts":[],"by_session":true}',
    ),
    (
        records.InputAdmitted(input=InputId("i1"), turn=T, parts=(), plugin_input={"crm": {"id": 7}}),
        '{"type":"input_admitted","input":"i1","turn":"t1","parts":[],"plugin_input":{"crm":{"id":7}}}',
    ),
    (
        records.TurnOpened(turn=T, index=0, composition=BlobHash("h")),
        '{"type":"turn_opened","turn":"t1","index":0,"composition":"h"}',
    ),
    (
        records.TurnOpened(
            turn=T,
            index=9,
            composition=BlobHash("h"),
            from_turn=2,
            view_seq=Seq(40),
            limits=records.Limits(max_iterations=3, no_progress=2, model_attempts=1, max_parallel_calls=8),
        ),
        '{"type":"turn_opened","turn":"t1","index":9,"composition":"h","from_turn":2,"view_seq":40,"limits":'
        '{"max_iterations":3,"no_progress":2,"model_attempts":1,"max_parallel_calls":8}}',
    ),
    (
        records.EffectStarted(id=EffectId("m1.1"), kind=e.EffectKind.LLM_CALL, fingerprint="f"),
        '{"type":"effect_started","id":"m1.1","kind":"llm_call","fingerprint":"f"}',
    ),
    (
        records.EffectStarted(
            id=EffectId("c1.0/asked:1"),
            kind=e.EffectKind.DIRECT,
            fingerprint="f",
            estimated_usage=o.DirectUsage(source="judge", model="m1", usage=Usage(input=3, calls=1, estimated=1)),
        ),
        '{"type":"effect_started","id":"c1.0/asked:1","kind":"direct","fingerprint":"f","asks":{"source":"judge",'
        '"model":"m1","usage":{"input":3,"calls":1,"estimated":1}}}',
    ),
    (
        records.EffectStarted(
            id=EffectId("c1.0.1"),
            kind=e.EffectKind.TOOL_CALL,
            fingerprint="f",
            command=e.CallTool(call=CALL),
            effect="once",
            doubt="probe",
            worker=WorkerId("w1"),
            deadline_at=7,
            due_at=8,
        ),
        '{"type":"effect_started","id":"c1.0.1","kind":"tool_call","fingerprint":"f","command":{"type":"tool_call",'
        '"call":{"call_id":"t1.1.0","tool_id":"tool:refund","tool_name":"refund","args":{"cents":5}}},'
        '"effect":"once","doubt":"probe","worker":"w1","deadline_at":7,"due_at":8}',
    ),
    (
        records.EffectSettled(id=EffectId("m1.1.sleep"), outcome=o.SleepOutcome(), fingerprint="f"),
        '{"type":"effect_settled","id":"m1.1.sleep","outcome":{"type":"sleep"},"fingerprint":"f"}',
    ),
    (
        records.OutcomeArrivedLate(call=C, id=EffectId("c1.0.1"), tool="refund", output=o.Success(value=1)),
        '{"type":"outcome_arrived_late","call":"t1.1.0","id":"c1.0.1","tool":"refund","output":{"status":"success",'
        '"value":1}}',
    ),
    (
        records.ToolMembershipChanged(names=("refund", "look"), present=False),
        '{"type":"tool_membership_changed","names":["refund","look"],"present":false}',
    ),
    (
        records.ToolMembershipChanged(names=("refund",), present=True, call=C),
        '{"type":"tool_membership_changed","names":["refund"],"present":true,"call":"t1.1.0"}',
    ),
    (
        records.AttachmentStored(call=C, ref=REF),
        '{"type":"attachment_stored","call":"t1.1.0","ref":{"hash":"h1","media_type":"image/png","size":3}}',
    ),
    (
        records.AttachmentStored(call=C, redacted="s"),
        '{"type":"attachment_stored","call":"t1.1.0","redacted":"s"}',
    ),
    (
        records.ModelJobBegun(id=EffectId("m1.1"), job={"route": "r", "id": "resp_1"}),
        '{"type":"model_job_begun","id":"m1.1","job":{"route":"r","id":"resp_1"}}',
    ),
    (
        records.HandedOver(turn=T, call=C, to="billing"),
        '{"type":"handed_over","turn":"t1","call":"t1.1.0","to":"billing"}',
    ),
    (
        records.HandedOver(turn=T, call=C, to="billing", reason="wants money"),
        '{"type":"handed_over","turn":"t1","call":"t1.1.0","to":"billing","reason":"wants money"}',
    ),
    (
        records.TurnAgentChanged(turn=T, n=1, agent="billing", composition=BlobHash("h")),
        '{"type":"turn_agent_changed","turn":"t1","n":1,"agent":"billing","composition":"h"}',
    ),
    (
        records.TurnAgentChanged(turn=T, n=1, agent="billing", composition=BlobHash(""), redacted="s"),
        '{"type":"turn_agent_changed","turn":"t1","n":1,"agent":"billing","composition":"","redacted":"s"}',
    ),
    (
        records.CancelRequested(turn=T, request="r1"),
        '{"type":"cancel_requested","turn":"t1","request":"r1"}',
    ),
    (
        records.CancelRequested(turn=T, request="r1", origin="api", reason="enough"),
        '{"type":"cancel_requested","turn":"t1","request":"r1","origin":"api","reason":"enough"}',
    ),
    (
        records.TurnEnded(turn=T, status="finished"),
        '{"type":"turn_ended","turn":"t1","status":"finished"}',
    ),
    (
        records.TurnEnded(turn=T, status="stopped", reason="cancelled", message="m", usage=Usage(input=3, calls=1)),
        '{"type":"turn_ended","turn":"t1","status":"stopped","reason":"cancelled","message":"m","usage":{"input":3,'
        '"calls":1}}',
    ),
    (records.TitleSet(title="Refund"), '{"type":"title_set","title":"Refund"}'),
    (records.ModelSet(model="sim:echo"), '{"type":"model_set","model":"sim:echo"}'),
    (
        records.ScheduleCreated(
            schedule=schedules.Schedule(
                target=schedules.SendInput(session="s", text="hi", agent="a"),
                cron="0 9 * * *",
                timezone="Europe/Berlin",
                owner="s",
                overlap="queue",
                catch_up="all",
                max_catch_up=3,
                max_runs=9,
                description="d",
            ),
            by="ann",
        ),
        '{"type":"schedule_created","schedule":{"target":{"type":"send_input","session":"s","text":"hi","agent":"a"},'
        '"cron":"0 9 * * *","timezone":"Europe/Berlin","description":"d","owner":"s","overlap":"queue",'
        '"catch_up":"all","max_catch_up":3,"max_runs":9},"by":"ann"}',
    ),
    (
        records.ScheduleCreated(schedule=schedules.Schedule(target=schedules.SendInput(session="s", text="hi"), at=5)),
        '{"type":"schedule_created","schedule":{"target":{"type":"send_input","session":"s","text":"hi"},"at":5}}',
    ),
    (
        records.ScheduleFired(due_at=5, turn=T, input=InputId("i1"), request="r", missed=2),
        '{"type":"schedule_fired","due_at":5,"turn":"t1","input":"i1","request":"r","missed":2}',
    ),
    (
        records.ScheduleFired(due_at=5, process="p"),
        '{"type":"schedule_fired","due_at":5,"process":"p"}',
    ),
    (
        records.ScheduleFired(due_at=5, occurrence="o"),
        '{"type":"schedule_fired","due_at":5,"occurrence":"o"}',
    ),
    (
        records.ScheduleCreated(
            schedule=schedules.Schedule(
                target=schedules.StartsProcess(
                    definition="python:f", input={"args": []}, event_types=(r.EventType(name="e"),)
                ),
                at=5,
            )
        ),
        '{"type":"schedule_created","schedule":{"target":{"type":"start_process","definition":"python:f",'
        '"input":{"args":[]},"event_types":[{"name":"e"}]},"at":5}}',
    ),
    (
        records.ScheduleCreated(
            schedule=schedules.Schedule(
                target=schedules.EmitsOccurrence(source_type="a.b", payload=1, source="s"), at=5
            )
        ),
        '{"type":"schedule_created","schedule":{"target":{"type":"emit_occurrence","source_type":"a.b","payload":1,'
        '"source":"s"},"at":5}}',
    ),
    (
        records.ScheduleSkipped(due_at=5, reason="overlap", missed=2, request="r"),
        '{"type":"schedule_skipped","due_at":5,"reason":"overlap","missed":2,"request":"r"}',
    ),
    (
        records.SchedulePruned(
            until=Seq(201),
            handled_until=9,
            runs=3,
            skipped=2,
            missed=1,
            paused=True,
            asked=("r",),
            last_run=records.ScheduleFired(due_at=7),
            last_run_at=8,
        ),
        '{"type":"schedule_pruned","until":201,"handled_until":9,"runs":3,"skipped":2,"missed":1,"paused":true,'
        '"asked":["r"],"last_run":{"type":"schedule_fired","due_at":7},"last_run_at":8}',
    ),
    (
        records.TriggerSourceOpened(source_type="mail.received", source="k"),
        '{"type":"trigger_source_opened","source_type":"mail.received","source":"k"}',
    ),
    (
        records.SubscriptionChanged(
            change="updated",
            subscription=triggers.SubscriptionState(
                id="mail.received:f",
                definition=triggers.SubscriptionDefinition(
                    key="f",
                    definition="python:f",
                    uses_event=False,
                    fixed={"args": [1], "kwargs": {}},
                    owner="s",
                    wake_target=processes.SessionScope(session_id="s"),
                ),
                revision=2,
                incarnation=3,
                enabled=False,
                deleted=True,
            ),
            operation="op",
            by="ann",
        ),
        '{"type":"subscription_changed","change":"updated","subscription":{"id":"mail.received:f","definition":'
        '{"key":"f","definition":"python:f","uses_event":false,"fixed":{"args":[1],"kwargs":{}},"owner":"s",'
        '"wake_target":{"session_id":"s"}},"revision":2,"incarnation":3,"enabled":false,"deleted":true},'
        '"operation":"op","by":"ann"}',
    ),
    (
        records.TriggerOccurred(
            occurrence="occ_1",
            key="m1",
            payload={"a": 1},
            session="s",
            deliveries=(
                triggers.TriggerDelivery(subscription="sub_1", revision=2, incarnation=1, process_id="trg_1"),
                triggers.TriggerDelivery(
                    subscription="sub_2",
                    revision=1,
                    incarnation=1,
                    process_id="trg_2",
                    failed=triggers.StartFailure(code="c", message="m"),
                ),
            ),
        ),
        '{"type":"trigger_occurred","occurrence":"occ_1","key":"m1","payload":{"a":1},"session":"s","deliveries":'
        '[{"subscription":"sub_1","revision":2,"incarnation":1,"process_id":"trg_1"},'
        '{"subscription":"sub_2","revision":1,"incarnation":1,"process_id":"trg_2","failed":{"code":"c","message":"m"}}]}',
    ),
    (
        records.TriggerDeliveryFailed(
            occurrence="occ_1", subscription="sub_1", failure=triggers.StartFailure(code="c", message="m")
        ),
        '{"type":"trigger_delivery_failed","occurrence":"occ_1","subscription":"sub_1",'
        '"failure":{"code":"c","message":"m"}}',
    ),
    (
        records.TriggerPruned(occurrences=7, subscriptions=("mail.received:f",), since=5),
        '{"type":"trigger_pruned","occurrences":7,"subscriptions":["mail.received:f"],"since":5}',
    ),
    (
        records.ScheduleChanged(change="ended", by="ann", reason="cancelled", request="r"),
        '{"type":"schedule_changed","change":"ended","by":"ann","reason":"cancelled","request":"r"}',
    ),
    (records.TagsSet(tags=("eu", "vip")), '{"type":"tags_set","tags":["eu","vip"]}'),
    (
        records.RecordRedacted(seq=Seq(7), sha256="ab", origin="api"),
        '{"type":"record_redacted","seq":7,"sha256":"ab","origin":"api"}',
    ),
    (
        records.InputAdmitted(
            input=InputId("i2"), turn=T, parts=(messages.Text(text="hi"),), mode="steer", source="web", joins=True
        ),
        '{"type":"input_admitted","input":"i2","turn":"t1","parts":[{"type":"text","text":"hi"}],"mode":"steer",'
        '"source":"web","joins":true}',
    ),
    (
        records.CancelRequested(turn=T, request="i2", superseded_by=InputId("i2")),
        '{"type":"cancel_requested","turn":"t1","request":"i2","superseded_by":"i2"}',
    ),
    (
        records.InputCancelled(
            input=InputId("i2"), turn=T, key="k", origin="api", replaced_by=InputId("i3"), answered_in=TurnId("t3")
        ),
        '{"type":"input_cancelled","input":"i2","turn":"t1","key":"k","origin":"api","replaced_by":"i3",'
        '"answered_in":"t3"}',
    ),
    (
        records.SessionPaused(origin="maria", reason="look first"),
        '{"type":"session_paused","origin":"maria","reason":"look first"}',
    ),
    (records.SessionResumed(origin="maria"), '{"type":"session_resumed","origin":"maria"}'),
    (
        records.ApprovalGranted(
            grant=PromiseId("k1"), tool="refund", agent="a", contract="c1", by="ana", at=5, via="cli"
        ),
        '{"type":"approval_granted","grant":"k1","tool":"refund","agent":"a","contract":"c1","by":"ana","at":5,"via":"cli"}',
    ),
    (records.SessionImported(agent="support"), '{"type":"session_imported","agent":"support"}'),
    (records.GrantRevoked(grant=PromiseId("k1"), by="bob"), '{"type":"grant_revoked","grant":"k1","by":"bob"}'),
    (
        records.ProcessRegistered(
            registration=r.Registration(
                process_id="p1",
                definition="python:nightly",
                input=r.EngineInput(kind="python", payload={"args": [1]}),
                recovery="rerunnable",
                env="process-env:sha256:0",
                event_types=(
                    r.EventType(name="signal.*"),
                    r.EventType(
                        name="done",
                        payload_schema={"type": "object"},
                        semantics=r.Semantics(
                            terminal="failed",
                            output=r.Pointer(path="/why"),
                            wake=r.WakeSpec(input=r.Constant(value=1), when=r.Present(path="/x")),
                        ),
                    ),
                ),
                provenance=r.Provenance(originator=SCOPE, parent="p0", caused_by=causes.ProcessCause(process_id="p0")),
                wake_target=SCOPE,
                label="the nightly run",
            ),
            hash="h1",
        ),
        '{"type":"process_registered","registration":{"process_id":"p1","definition":"python:nightly","input":{"type":'
        '"engine","kind":"python","payload":{"args":[1]}},"recovery":"rerunnable","env":"process-env:sha256:0",'
        '"event_types":[{"name":"signal.*"},{"name":"done","payload_schema":{"type":"object"},"semantics":{"terminal":'
        '"failed","output":{"type":"pointer","path":"/why"},"wake":{"input":{"type":"const","value":1},"when":{"type":'
        '"present","path":"/x"}}}}],"provenance":{"originator":{"session_id":"s1"},"parent":"p0","caused_by":{"type":'
        '"process","process_id":"p0"}},"wake_target":{"session_id":"s1"},"label":"the nightly run"},"hash":"h1"}',
    ),
    (
        records.ProcessRegistered(
            registration=r.Registration(
                process_id="p2", definition="external", input=r.ExternalInput(), recovery="externally_owned"
            ),
            hash="h2",
        ),
        '{"type":"process_registered","registration":{"process_id":"p2","definition":"external","input":{"type":'
        '"external"},"recovery":"externally_owned"},"hash":"h2"}',
    ),
    (records.ProcessFirstStarted(worker=WorkerId("w")), '{"type":"process_first_started","worker":"w"}'),
    (
        records.ProcessEvent(event="signal.go", payload={"n": 1}, replay="k"),
        '{"type":"process_event","event":"signal.go","payload":{"n":1},"replay":"k"}',
    ),
    (
        records.ProcessEvent(event="process.completed", output=r.ProcessSucceeded(value=[1]), replay="k"),
        '{"type":"process_event","event":"process.completed","replay":"k","output":{"status":"success","value":[1]}}',
    ),
    (
        records.ProcessEvent(event="process.failed", output=r.ProcessFailure(code="c", message="m"), replay="k"),
        '{"type":"process_event","event":"process.failed","replay":"k","output":{"status":"failure","code":"c",'
        '"message":"m"}}',
    ),
    (
        records.ProcessEvent(event="process.cancelled", output=r.ProcessWasCancelled(reason="r"), replay="k"),
        '{"type":"process_event","event":"process.cancelled","replay":"k","output":{"status":"cancelled","reason":"r"}}',
    ),
    (
        records.ProcessEvent(
            event="process.abandoned", output=r.ProcessWasAbandoned(by="w"), replay="k", authority="owner_drain"
        ),
        '{"type":"process_event","event":"process.abandoned","replay":"k","output":{"status":"abandoned","by":"w"},'
        '"authority":"owner_drain"}',
    ),
    (records.AbandonRequested(by="ann", reason="r"), '{"type":"abandon_requested","by":"ann","reason":"r"}'),
]

COMMANDS: list[tuple[e.Command, str]] = [
    (
        e.LlmCall(
            request=e.LlmRequestSpec(
                model="sim:x",
                composition=BlobHash("h"),
                view=e.ViewRef(from_turn=0, turn=2, iteration=1),
                session_id="s1",
            )
        ),
        '{"type":"llm_call","request":{"model":"sim:x","composition":"h","view":{"from_turn":0,"turn":2,"iteration":1},'
        '"session_id":"s1"}}',
    ),
    (
        e.Direct(
            request=e.LlmRequestSpec(
                model="sim:x",
                messages=(messages.Message(role="user", parts=(messages.Text(text="hi"),)),),
                attachments=(REF,),
                tool_choice="none",
                model_variant="fast",
                generation={"temperature": 0},
                output_spec={"type": "object"},
            ),
            usage_source="title",
        ),
        '{"type":"direct","request":{"model":"sim:x","messages":[{"role":"user","parts":[{"type":"text","text":"hi"}]}],'
        '"attachments":[{"hash":"h1","media_type":"image/png","size":3}],"tool_choice":"none","model_variant":"fast",'
        '"generation":{"temperature":0},"output_spec":{"type":"object"}},"usage_source":"title"}',
    ),
    (
        e.CallTool(call=CALL),
        '{"type":"tool_call","call":{"call_id":"t1.1.0","tool_id":"tool:refund","tool_name":"refund","args":'
        '{"cents":5}}}',
    ),
    (
        e.CallTools(
            batch=e.PreparedToolBatch(batch_id="b", calls=(e.BatchedCall(call=CALL, replay_suffix="child:0:x"),))
        ),
        '{"type":"tool_batch","batch":{"batch_id":"b","calls":[{"call":{"call_id":"t1.1.0","tool_id":"tool:refund",'
        '"tool_name":"refund","args":{"cents":5}},"replay_suffix":"child:0:x"}]}}',
    ),
    (e.DurableStep(step_id="x", input=[1]), '{"type":"durable_step","step_id":"x","input":[1]}'),
    (e.DurableStep(step_id="x"), '{"type":"durable_step","step_id":"x"}'),
    (
        e.Process(command=processes.AwaitProcess(process_id="p")),
        '{"type":"process","command":{"op":"await","process_id":"p"}}',
    ),
    (e.ExecCode(code="1+1"), '{"type":"exec_code","code":"1+1"}'),
    (e.Checkpoint(checkpoint="after_model"), '{"type":"checkpoint","checkpoint":"after_model"}'),
    (e.SyncExecutionEnvironment(), '{"type":"sync_execution_environment"}'),
    (
        e.SyncExecutionEnvironment(update_machine_config=True),
        '{"type":"sync_execution_environment","update_machine_config":true}',
    ),
    (e.Sleep(duration_ms=0), '{"type":"sleep","duration_ms":0}'),
    (
        e.AwaitEvent(key=KEY),
        '{"type":"await_event","key":{"scope":"s1","wait":{"type":"custom","key":"ok"},"key_id":"k1",'
        '"signature":"sig"}}',
    ),
    (
        e.AwaitEvent(key=KEY, about=CALL),
        '{"type":"await_event","key":{"scope":"s1","wait":{"type":"custom","key":"ok"},"key_id":"k1",'
        '"signature":"sig"},"about":{"call_id":"t1.1.0","tool_id":"tool:refund","tool_name":"refund","args":{"cents":5}}}',
    ),
]

PROCESS_COMMANDS: list[tuple[processes.ProcessCommand, str]] = [
    (
        processes.StartProcess(process_id="p", registration={"engine": "python"}),
        '{"op":"start","process_id":"p","registration":{"engine":"python"}}',
    ),
    (
        processes.ListProcesses(session_scope=processes.SessionScope(session_id="s1", frame_id="f"), mode="all"),
        '{"op":"list","session_scope":{"session_id":"s1","frame_id":"f"},"mode":"all"}',
    ),
    (processes.ListProcesses(session_scope=SCOPE), '{"op":"list","session_scope":{"session_id":"s1"}}'),
    (
        processes.TransferProcesses(from_scope=SCOPE, to_scope=SCOPE, process_ids=("p",)),
        '{"op":"transfer","from_scope":{"session_id":"s1"},"to_scope":{"session_id":"s1"},"process_ids":["p"]}',
    ),
    (processes.DeleteSessionEdges(session_id="s1"), '{"op":"delete_session","session_id":"s1"}'),
    (processes.AwaitProcess(process_id="p"), '{"op":"await","process_id":"p"}'),
    (processes.CancelProcess(process_id="p"), '{"op":"cancel","process_id":"p"}'),
    (
        processes.SignalProcess(process_id="p", signal_name="go", signal_id="x", payload=1),
        '{"op":"signal","process_id":"p","signal_name":"go","signal_id":"x","payload":1}',
    ),
]

PROCESS_OUTCOMES: list[tuple[processes.ProcessOutcome, str]] = [
    (processes.ProcessStarted(record={}), '{"op":"start","record":{}}'),
    (processes.ProcessesListed(), '{"op":"list"}'),
    (processes.ProcessesTransferred(), '{"op":"transfer"}'),
    (processes.SessionEdgesDeleted(), '{"op":"delete_session"}'),
    (processes.ProcessAwaited(output=1), '{"op":"await","output":1}'),
    (processes.ProcessCancelled(record={}), '{"op":"cancel","record":{}}'),
    (processes.ProcessSignalled(event={}), '{"op":"signal","event":{}}'),
]

OUTCOMES: list[tuple[o.Outcome, str]] = [
    (
        o.LlmCallOutcome(
            reply=messages.Reply(
                parts=(
                    messages.Thinking(text="hm", signature="s", route="r"),
                    messages.Text(text="ok"),
                    messages.ToolCall(id=C, name="refund", args={"cents": 5}, provider_id="call_0"),
                    messages.ToolCall(id=C, name="refund", args=None, malformed="{"),
                ),
                finish="tool_calls",
                usage=Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5, calls=1),
                model="m",
            ),
            text_streamed=True,
        ),
        '{"type":"llm_call","reply":{"parts":[{"type":"thinking","text":"hm","signature":"s","route":"r"},'
        '{"type":"text","text":"ok"},{"type":"tool_call","id":"t1.1.0","name":"refund","args":{"cents":5},'
        '"provider_id":"call_0"},{"type":"tool_call","id":"t1.1.0","name":"refund","args":null,"malformed":"{"}],'
        '"finish":"tool_calls","usage":{"input":1,"output":2,"cache_read":3,"cache_write":4,"reasoning":5,"calls":1},'
        '"model":"m"},"text_streamed":true}',
    ),
    (
        o.LlmCallOutcome(
            error=o.LlmError(kind="rate_limit", message="m", retryable=True, retry_after_ms=9, status=429)
        ),
        '{"type":"llm_call","error":{"kind":"rate_limit","message":"m","retryable":true,"retry_after_ms":9,'
        '"status":429}}',
    ),
    (
        o.DirectOutcome(error=o.LlmError(kind="auth", message="m"), source="summary"),
        '{"type":"direct","error":{"kind":"auth","message":"m"},"source":"summary"}',
    ),
    (
        o.DirectOutcome(source="summary", spent=Usage(input=3, calls=1), model="m1"),
        '{"type":"direct","source":"summary","spent":{"input":3,"calls":1},"model":"m1"}',
    ),
    (
        o.ToolCallOutcome(launch=DONE),
        '{"type":"tool_call","launch":{"status":"done","result":{"call_id":"t1.1.0","tool_name":"refund","output":'
        '{"status":"success","value":"ok"}}}}',
    ),
    (
        o.ToolCallOutcome(launch=o.Pending(key=KEY), triggers=({"t": 1},)),
        '{"type":"tool_call","launch":{"status":"pending","key":{"scope":"s1","wait":{"type":"custom","key":"ok"},'
        '"key_id":"k1","signature":"sig"}},"triggers":[{"t":1}]}',
    ),
    (
        o.ToolCallOutcome(launch=o.Pending(key=KEY, due_at=7, silence={"answers": {}})),
        '{"type":"tool_call","launch":{"status":"pending","key":{"scope":"s1","wait":{"type":"custom","key":"ok"},'
        '"key_id":"k1","signature":"sig"},"due_at":7,"silence":{"answers":{}}}}',
    ),
    (
        o.ToolBatchOutcome(
            launches=(
                o.Pending(
                    key=KEY,
                    pending=o.PendingCompletion(deadline_ms=1, on_timeout="fail_turn", on_cancel="ignore"),
                    duration_ms=2,
                ),
            )
        ),
        '{"type":"tool_batch","launches":[{"status":"pending","key":{"scope":"s1","wait":{"type":"custom","key":"ok"},'
        '"key_id":"k1","signature":"sig"},"pending":{"deadline_ms":1,"on_timeout":"fail_turn","on_cancel":"ignore"},'
        '"duration_ms":2}]}',
    ),
    (o.DurableStepOutcome(value={"verdict": "unknown"}), '{"type":"durable_step","value":{"verdict":"unknown"}}'),
    (
        o.DurableStepOutcome(
            error=o.StepFailure(code="x", message="m"), in_doubt=o.InDoubt(reason="worker_lost", message="m")
        ),
        '{"type":"durable_step","error":{"code":"x","message":"m"},"in_doubt":{"status":"in_doubt","reason":'
        '"worker_lost","message":"m"}}',
    ),
    (
        o.ProcessEffectOutcome(result=processes.ProcessesTransferred()),
        '{"type":"process","result":{"op":"transfer"}}',
    ),
    (o.ExecCodeOutcome(response=1, error="e"), '{"type":"exec_code","response":1,"error":"e"}'),
    (
        o.CheckpointOutcome(delivery=[], error=o.StepFailure(code="x", message="m")),
        '{"type":"checkpoint","delivery":[],"error":{"code":"x","message":"m"}}',
    ),
    (o.SyncOutcome(sync={}, error="e"), '{"type":"sync_execution_environment","sync":{},"error":"e"}'),
    (o.SleepOutcome(), '{"type":"sleep"}'),
    (
        o.AwaitEventOutcome(resolution=promises.Ok(value=True)),
        '{"type":"await_event","resolution":{"status":"ok","value":true}}',
    ),
]

TOOL_OUTPUTS: list[tuple[o.ToolOutput, str]] = [
    (o.Success(), '{"status":"success"}'),
    (
        o.Success(value=1, spilled=REF),
        '{"status":"success","value":1,"spilled":{"hash":"h1","media_type":"image/png","size":3}}',
    ),
    (
        o.Success(images=(REF,), connection_required="github"),
        '{"status":"success","images":[{"hash":"h1","media_type":"image/png","size":3}],"connection_required":"github"}',
    ),
    (
        o.Failed(failure=o.FailureDetail(code="x", message="m")),
        '{"status":"failure","failure":{"code":"x","message":"m"}}',
    ),
    (
        o.Failed(
            failure=o.FailureDetail(
                code="x",
                message="m",
                failure_class="timeout",
                retry_safe=True,
                retry_after_ms=5,
                attempts=2,
                error_type="OSError",
            )
        ),
        '{"status":"failure","failure":{"code":"x","message":"m","failure_class":"timeout","retry_safe":true,'
        '"retry_after_ms":5,"attempts":2,"error_type":"OSError"}}',
    ),
    (o.InDoubt(reason="drained"), '{"status":"in_doubt","reason":"drained"}'),
    (o.NotRun(reason="r"), '{"status":"cancelled","reason":"r"}'),
]

PARTS: list[tuple[messages.Part, str]] = [
    (messages.Text(text=""), '{"type":"text","text":""}'),
    (messages.Thinking(text="hm"), '{"type":"thinking","text":"hm"}'),
    (
        messages.Text(text="a", citations=(messages.Citation(url="u", start=0, end=1),), state={"id": "m"}, route="r"),
        '{"type":"text","text":"a","citations":[{"url":"u","start":0,"end":1}],"state":{"id":"m"},"route":"r"}',
    ),
    (
        messages.Opaque(kind="compaction", state={"a": 1}, route="r"),
        '{"type":"opaque","kind":"compaction","state":{"a":1},"route":"r"}',
    ),
    (messages.ImagePart(ref=REF), '{"type":"image","ref":{"hash":"h1","media_type":"image/png","size":3}}'),
    (
        messages.File(ref=messages.AttachmentRef(hash=BlobHash("h"), media_type="text/csv", size=0, name="a.csv")),
        '{"type":"file","ref":{"hash":"h","media_type":"text/csv","size":0,"name":"a.csv"}}',
    ),
    (messages.ToolCall(id=C, name="x", args=None), '{"type":"tool_call","id":"t1.1.0","name":"x","args":null}'),
    (
        messages.ToolResultPart(call=C, name="x", output=None, is_error=True, provider_id="p"),
        '{"type":"tool_result","call":"t1.1.0","name":"x","output":null,"is_error":true,"provider_id":"p"}',
    ),
]

WAITS: list[tuple[promises.WaitIdentity, str]] = [
    (promises.ToolCompletion(call_id="c"), '{"type":"tool_completion","call_id":"c"}'),
    (promises.ClientResult(call_id="c"), '{"type":"client_result","call_id":"c"}'),
    (promises.UserAnswer(call_id="c"), '{"type":"user_answer","call_id":"c"}'),
    (promises.TurnCancelGate(turn_id="t1"), '{"type":"turn_cancel_gate","turn_id":"t1"}'),
    (promises.TurnTerminal(turn_id="t1"), '{"type":"turn_terminal","turn_id":"t1"}'),
    (promises.ProcessTerminal(process_id="p"), '{"type":"process_terminal","process_id":"p"}'),
    (
        promises.ProcessSignal(process_id="p", name="go", ordinal=1),
        '{"type":"process_signal","process_id":"p","name":"go","ordinal":1}',
    ),
    (promises.Custom(key="k"), '{"type":"custom","key":"k"}'),
    (
        promises.ToolApproval(call_id=C, tool="refund", arguments="d1"),
        '{"type":"tool_approval","call_id":"t1.1.0","tool":"refund","arguments":"d1"}',
    ),
    (promises.DoubtVerdict(call_id=C, attempt=2), '{"type":"doubt_verdict","call_id":"t1.1.0","attempt":2}'),
]

RESOLUTIONS: list[tuple[promises.Resolution, str]] = [
    (promises.Ok(), '{"status":"ok"}'),
    (promises.Failure(code="c", message="m", raw=[1]), '{"status":"err","code":"c","message":"m","raw":[1]}'),
    (promises.TimedOut(), '{"status":"timeout"}'),
    (promises.Cancelled(), '{"status":"cancelled"}'),
]

CAUSES: list[tuple[causes.CausalRef, str]] = [
    (causes.EffectCause(session_id="s", effect_id="e"), '{"type":"effect","session_id":"s","effect_id":"e"}'),
    (causes.TurnCause(session_id="s", turn_id="t"), '{"type":"turn","session_id":"s","turn_id":"t"}'),
    (causes.ToolCallCause(session_id="s", call_id="c"), '{"type":"tool_call","session_id":"s","call_id":"c"}'),
    (causes.ProcessCause(process_id="p"), '{"type":"process","process_id":"p"}'),
    (causes.ProcessEventCause(process_id="p", sequence=1), '{"type":"process_event","process_id":"p","sequence":1}'),
    (causes.TriggerOccurrenceCause(occurrence_id="o"), '{"type":"trigger_occurrence","occurrence_id":"o"}'),
    (causes.SessionNodeCause(session_id="s", node_id="n"), '{"type":"session_node","session_id":"s","node_id":"n"}'),
]

SUBJECTS: list[tuple[e.Subject, str]] = [
    (
        e.EffectSubject(effect_id="e", kind=e.EffectKind.SLEEP),
        '{"type":"effect","effect_id":"e","kind":"sleep"}',
    ),
    (e.ProcessSubject(process_id="p"), '{"type":"process","process_id":"p"}'),
    (
        e.ProcessEventSubject(process_id="p", sequence=1, event_type="x"),
        '{"type":"process_event","process_id":"p","sequence":1,"event_type":"x"}',
    ),
    (e.TriggerOccurrenceSubject(occurrence_id="o"), '{"type":"trigger_occurrence","occurrence_id":"o"}'),
    (e.SessionNodeSubject(node_id="n"), '{"type":"session_node","node_id":"n"}'),
]

ITEMS: list[tuple[items.Item, str]] = [
    (
        items.Input(input=InputId("i"), turn=T, parts=(messages.Text(text="hi"),), key="k"),
        '{"type":"input","input":"i","turn":"t1","parts":[{"type":"text","text":"hi"}],"key":"k"}',
    ),
    (
        items.LateOutcome(call=C, id=EffectId("c1.0.1"), tool="refund", output=o.Success()),
        '{"type":"late_outcome","call":"t1.1.0","id":"c1.0.1","tool":"refund","output":{"status":"success"}}',
    ),
    (items.Wake(reason="r"), '{"type":"wake","reason":"r"}'),
    (
        items.CancelTurn(turn=T, origin="parent", reason="r"),
        '{"type":"cancel_turn","turn":"t1","origin":"parent","reason":"r"}',
    ),
    (
        records.ChildEnded(child=SessionId("sub-1"), turn=T, status="cancelled"),
        '{"type":"child_ended","child":"sub-1","turn":"t1","status":"cancelled"}',
    ),
    (
        items.Occurrence(occurrence="occ_1", key="m1", payload={"a": 1}, session="s"),
        '{"type":"occurrence","occurrence":"occ_1","key":"m1","payload":{"a":1},"session":"s"}',
    ),
]

COMPOSITIONS: list[tuple[Composition, str]] = [
    (Composition(agent="a", model="m"), '{"agent":"a","model":"m"}'),
    (
        Composition(
            agent="a",
            model="m",
            instructions="i",
            tools=(
                ToolContract(definition=ToolDefinition(name="x", description="d", parameters={})),
                ToolContract(
                    definition=ToolDefinition(
                        name="y",
                        description="d",
                        parameters={},
                        display_name="Y",
                        kind="client_side",
                        policy="requires_approval",
                        category="c",
                        deferrable="never",
                        hints=ToolHints(readonly=True, idempotent=False, concurrency_class="db"),
                        full_parameters={},
                    ),
                    durability=Durability(
                        effect="idempotent",
                        doubt="probe",
                        retry=RetryPolicy(kind="safe", max_attempts=3, base_delay_ms=1, max_delay_ms=2),
                        timeout_ms=9,
                        serial=True,
                        concurrency_class="db",
                    ),
                    returns={"type": "string"},
                ),
            ),
            settings={"temperature": 0.5},
        ),
        '{"agent":"a","model":"m","instructions":"i","tools":[{"definition":{"name":"x","description":"d",'
        '"parameters":{}}},{"definition":{"name":"y","description":"d","parameters":{},"display_name":"Y",'
        '"kind":"client_side","policy":"requires_approval","category":"c","deferrable":"never","hints":'
        '{"readonly":true,"idempotent":false,"concurrency_class":"db"},"full_parameters":{}},"durability":'
        '{"effect":"idempotent","doubt":"probe","retry":{"kind":"safe","max_attempts":3,"base_delay_ms":1,'
        '"max_delay_ms":2},"timeout_ms":9,"serial":true,"concurrency_class":"db"},'
        '"returns":{"type":"string"}}],"settings":{"temperature":0.5}}',
    ),
]

PROMISES: list[tuple[promises.PromiseState, str]] = [
    (
        promises.PromiseState(id=PromiseId("k"), stream=StreamId("s"), resolution=promises.Ok(value=1), deadline_at=5),
        '{"id":"k","stream":"s","resolution":{"status":"ok","value":1},"deadline_at":5}',
    ),
]

FAMILIES: list[tuple[object, list[tuple[object, str]]]] = [
    (records.Record, [*RECORDS]),
    (e.Command, [*COMMANDS]),
    (processes.ProcessCommand, [*PROCESS_COMMANDS]),
    (processes.ProcessOutcome, [*PROCESS_OUTCOMES]),
    (o.Outcome, [*OUTCOMES]),
    (o.ToolOutput, [*TOOL_OUTPUTS]),
    (messages.Part, [*PARTS]),
    (promises.WaitIdentity, [*WAITS]),
    (promises.Resolution, [*RESOLUTIONS]),
    (causes.CausalRef, [*CAUSES]),
    (e.Subject, [*SUBJECTS]),
    (items.Item, [*ITEMS]),
]
OTHERS: list[tuple[object, list[tuple[object, str]]]] = [
    (Composition, [*COMPOSITIONS]),
    (promises.PromiseState, [*PROMISES]),
]
FROZEN = [(type, value, text) for type, values in (*FAMILIES, *OTHERS) for value, text in values]


@pytest.mark.parametrize(("type", "value", "text"), FROZEN, ids=[text[:60] for _, _, text in FROZEN])
def test_a_value_is_written_and_read_as_it_always_was(type: object, value: object, text: str) -> None:
    assert encode(value).decode() == text
    again = decode(text, type)
    assert again == value
    assert again.__class__ is value.__class__


@pytest.mark.parametrize(("union", "values"), FAMILIES, ids=[str(index) for index in range(len(FAMILIES))])
def test_every_member_of_a_union_is_frozen_above(union: object, values: list[tuple[object, str]]) -> None:
    assert {value.__class__ for value, _ in values} == set(get_args(union))


@pytest.mark.parametrize(("union", "values"), FAMILIES, ids=[str(index) for index in range(len(FAMILIES))])
def test_tags_are_snake_case(union: object, values: list[tuple[object, str]]) -> None:
    for _, text in values:
        tag = next(iter(json.loads(text).values()))
        assert tag.replace("_", "").isalpha()
        assert tag == tag.lower()


@pytest.mark.parametrize(("record", "text"), RECORDS, ids=[text[:60] for _, text in RECORDS])
def test_a_record_is_stored_beside_its_kind_and_without_it(record: records.Record, text: str) -> None:
    kind = json.loads(text)["type"]
    stored = text.replace(f'{{"type":"{kind}",', "{", 1).encode()
    assert (records.kind_of(record), records.write(record)) == (kind, stored)
    row = records.Row(stream=StreamId("s"), seq=Seq(1), at=0, kind=kind, data=stored)
    assert row.record == record


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("session_teleported", b"{}"),
        ("", b'{"agent":"x"}'),
        ("session_opened", b"{}"),
        ("session_opened", b'{"type":"turn_opened","agent":"x"}'),
        ("effect_settled", b'{"id":"m1.1","outcome":{"type":"telepathy"}}'),
        ("effect_started", b'{"id":"m1.1","kind":"telepathy","fingerprint":"f"}'),
    ],
)
def test_a_record_of_a_later_version_is_told_from_a_broken_one(kind: str, text: bytes) -> None:
    with pytest.raises(Error) as caught:
        records.read(kind, text)
    assert caught.value.code is Code.FORMAT_NEWER
    assert caught.value.because


def test_a_field_that_a_later_version_added_is_passed_over() -> None:
    assert records.read("session_opened", b'{"agent":"a","mood":"good"}') == records.SessionOpened(agent="a")


def test_the_record_format_is_the_first() -> None:
    assert records.FORMAT == 1


def test_wait_identities_are_checked_when_they_are_read_too() -> None:
    with pytest.raises(Error) as caught:
        decode(b'{"type":"process_signal","process_id":"p","name":"go","ordinal":0}', promises.WaitIdentity)
    assert caught.value.code is Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY


def test_an_envelope_is_written_and_read_as_it_always_was() -> None:
    envelope = e.Envelope(
        invocation=e.Invocation.effect(
            e.Scope(session_id="s1", turn_id="t1", turn_index=0, protocol_iteration=1),
            "m1.1",
            e.EffectKind.SLEEP,
            "k",
            causes.ProcessCause(process_id="p"),
        ),
        command=e.Sleep(duration_ms=5),
    )
    text = (
        '{"invocation":{"scope":{"session_id":"s1","turn_id":"t1","turn_index":0,"protocol_iteration":1},"subject":'
        '{"type":"effect","effect_id":"m1.1","kind":"sleep"},"caused_by":{"type":"process","process_id":"p"},"replay":'
        '{"key":"k"}},"command":{"type":"sleep","duration_ms":5}}'
    )
    assert encode(envelope).decode() == text
    assert decode(text, e.Envelope) == envelope


@pytest.mark.parametrize("text", [b"", b'{"age', b"\x00\x00", b'{"agent":"\xff"}'])
def test_a_damaged_record_is_told_from_one_of_a_later_version(text: bytes) -> None:
    with pytest.raises(Error) as caught:
        records.read("session_opened", text)
    assert caught.value.code is Code.STORE_CORRUPT


def test_newer_inbox_item_is_distinguished_from_a_damaged_one() -> None:
    with pytest.raises(Error) as caught:
        items.read(b'{"type":"telegram"}')
    assert caught.value.code is Code.FORMAT_NEWER
    with pytest.raises(Error) as caught:
        items.read(b'{"type":"wa')
    assert caught.value.code is Code.STORE_CORRUPT
