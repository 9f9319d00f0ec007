"""Access rules of every route of the API and of the pages: the least permission that opens it.

A route that is not in this table fails `test_every_identity.py`.

- open: no key
- read, run, train, admin: the least scope of a key, or of a browser's session where the route is a page
- inference: the scope `run`; also the pass of a rollout
- worker: passes of the fleet and the server's own workers alone
"""

_API = {
    "open": """
        GET /openapi.json  GET /docs  GET /docs/routes  GET /docs/{path:path}  GET /healthz  GET /readyz  GET /metrics  POST /docs/mcp
        POST /auth/device/code  POST /auth/device/token  GET /auth/device  POST /auth/device
        PUT /uploads/{build_id}  POST /sdk-events/cli  POST /v3/api/sdk-events/cli
        GET /downloads/{token}/{file:path}
    """,
    "read": """
        GET /models  GET /v1/models
        GET /models/{model:path}  GET /v1/models/{model:path}
        GET /v2/jobs  GET /v2/jobs/{job_id}  GET /v2/jobs/{job_id}/traces  GET /v2/search
        GET /v2/labels  GET /v2/labels/agreement  GET /v2/labels/dataset
        GET /v2/labels/calibration
        GET /v2/comparisons  GET /v2/comparisons/agreement  GET /v2/comparisons/preferred
        GET /v2/trace/{trace_id}  GET /v2/trace/{trace_id}/full  GET /v2/trace/{trace_id}/spans
        POST /v2/trace/full
        GET /v2/trace/{trace_id}/events  GET /v2/trace/{trace_id}/outcomes  GET /v2/reward-rules
        GET /v2/sources/{source}/policy
        GET /v2/models  GET /v2/models/resolve  GET /v2/models/{model_id}
        GET /v2/models/{model_id}/checkpoints  GET /v2/models/{model_id}/checkpoints/{checkpoint_id}
        GET /v2/models/{model_id}/lease  GET /v2/models/{model_id}/architecture
        GET /v2/auth/me  GET /v2/projects  GET /v2/projects/{project_id}
        GET /v2/tasksets  GET /v2/tasksets/by-name/{name:path}  GET /v2/tasksets/{taskset_id}
        GET /v2/tasksets/{taskset_id}/export  GET /v2/tasksets/{taskset_id}/versions
        GET /v2/registry  GET /v2/registry/{reference}
        GET /v2/builds/{build_id}/status  GET /v2/builds/{build_id}/lines
        WEBSOCKET /v2/builds/{build_id}/logs
        GET /v2/rollouts/{trace_id}  GET /v2/fleet-nodes
        GET /v2/data/{rest:path}  POST /v2/data/{rest:path}
        PUT /v2/data/{rest:path}  DELETE /v2/data/{rest:path}
        GET /v2/imports  POST /v2/imports  PUT /v2/imports  DELETE /v2/imports
        GET /v2/imports/{rest:path}  POST /v2/imports/{rest:path}
        PUT /v2/imports/{rest:path}  DELETE /v2/imports/{rest:path}
        GET /v2/qa/{rest:path}  POST /v2/qa/{rest:path}
        PUT /v2/qa/{rest:path}  DELETE /v2/qa/{rest:path}
        GET /v2/qa-agents  POST /v2/qa-agents  PUT /v2/qa-agents  DELETE /v2/qa-agents
        GET /v2/qa-agents/{rest:path}  POST /v2/qa-agents/{rest:path}
        PUT /v2/qa-agents/{rest:path}  DELETE /v2/qa-agents/{rest:path}
        GET /api/v1/training_runs  GET /api/v1/training_runs/{run}
        GET /api/v1/training_runs/{run}/checkpoints  GET /api/v1/checkpoints
        GET /api/v1/training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls
        GET /api/v1/sessions  GET /api/v1/sessions/{session_id}  GET /api/v1/samplers/{sampler_id}
        GET /api/v1/whoami
    """,
    "run": """
        POST /v2/comparisons
        POST /v2/labels  DELETE /v2/labels/{label_id}  POST /v2/models/{model_id}/rewards
        POST /v2/ingest  POST /v2/trace/job/{job_id}/enter  POST /v2/trace/{trace_id}/enter
        POST /v2/trace/{trace_id}/exit  POST /v1/traces  POST /v2/trace/{trace_id}/outcome
        POST /trace/{task_run_id}/telemetry-upload  POST /v3/api/trace/{task_run_id}/telemetry-upload
        POST /v2/projects  POST /v2/tasksets  POST /v2/tasks/upload
        POST /v2/rollouts/submit  POST /v2/rollouts/submit_many  POST /v2/rollouts/cancel  POST /v2/rollouts/cancel_job
        POST /v2/rollouts/cancel_user_jobs
        POST /runtime/sessions  DELETE /runtime/sessions/{session_id}
        WEBSOCKET /runtime/tunnels/{session_id}
        POST /api/v1/client/config  POST /api/v1/client/dynamic_config  POST /api/v1/telemetry
        GET /api/v1/healthz  GET /api/v1/get_server_capabilities
        POST /api/v1/create_session  POST /api/v1/session_heartbeat
        POST /api/v1/sessions/{session_id}/finish  POST /api/v1/get_info
        POST /api/v1/create_sampling_session  POST /api/v1/asample
        POST /api/v1/retrieve_future  POST /api/v1/cancel_future  POST /api/v1/weights_info
    """,
    "inference": """
        POST /v1/run-passes  POST /v1/run-passes/{pass_id}/end
        POST /chat/completions  POST /v1/chat/completions  POST /completions  POST /v1/completions
        POST /messages  POST /v1/messages  POST /messages/count_tokens  POST /v1/messages/count_tokens
        POST /responses  POST /v1/responses  POST /responses/input_tokens  POST /v1/responses/input_tokens
        POST /responses/compact  POST /v1/responses/compact  DELETE /responses/{id}  DELETE /v1/responses/{id}
        POST /models/{call:path}  POST /v1/models/{call:path}
        POST /v1alpha/models/{call:path}  POST /v1beta/models/{call:path}
    """,
    "inference read": """
        GET /responses/{id}  GET /v1/responses/{id}
        GET /v1alpha/models  GET /v1beta/models
        GET /v1alpha/models/{model:path}  GET /v1beta/models/{model:path}
    """,
    "train": """
        GET /v1/models/{model_id}/train/losses  POST /v1/models/{model_id}/train/open
        POST /v1/models/{model_id}/train/forward-backward  POST /v1/models/{model_id}/train/forward
        POST /v1/models/{model_id}/train/backward  POST /v1/models/{model_id}/train/optim-step
        POST /v1/models/{model_id}/train/hold  POST /v1/models/{model_id}/train/render
        POST /v1/models/{model_id}/train/loss
        POST /v1/models/{model_id}/train/discard  POST /v1/models/{model_id}/train/close
        GET /v2/training-runs  POST /v2/training-runs  POST /v2/reward-rules
        GET /v2/training-runs/{run_id}  POST /v2/training-runs/{run_id}
        GET /v2/training-runs/{run_id}/steps  POST /v2/training-runs/{run_id}/steps
        POST /v2/models/fork  POST /v2/models/create  DELETE /v2/models/{model_id}
        PUT /v2/models/{model_id}/checkpoints/{checkpoint_id}  PUT /v2/models/{model_id}/head
        POST /v2/models/{model_id}/prune  POST /v2/models/{model_id}/promote
        POST /v2/models/{model_id}/prompts
        POST /api/v1/create_model  POST /api/v1/forward_backward  POST /api/v1/optim_step
        POST /api/v1/save_weights  POST /api/v1/save_weights_external  POST /api/v1/save_weights_for_sampler
        POST /api/v1/load_weights  POST /api/v1/unload_model
        DELETE /api/v1/training_runs/{run}/checkpoints/{kind}/{name}
        PUT /api/v1/training_runs/{run}/checkpoints/{kind}/{name}/ttl
        POST /v2/builds/upload-url  POST /v2/builds/trigger
    """,
    "admin": """
        POST /v2/models/add  POST /v2/models/provide  POST /v2/models/backend
        PUT /v2/models/{model_id}/servers
        POST /v2/models/{model_id}/export
        PUT /v2/sources/{source}/policy
        GET /v2/keys  POST /v2/keys  DELETE /v2/keys/{reference}
        GET /v2/secrets  PUT /v2/secrets/{name}  DELETE /v2/secrets/{name}
        GET /v2/fleet-passes  POST /v2/fleet-passes  DELETE /v2/fleet-passes/{reference}
        POST /v2/fleet-nodes/{reference}/{action}
    """,
    "worker": """
        POST /v2/fleet/join  POST /v2/fleet/take  POST /v2/fleet/renew  POST /v2/fleet/release
        POST /v2/fleet/leave  POST /v2/fleet/events  GET /v2/fleet/queue
        POST /v2/fleet/snapshot  POST /v2/fleet/snapshot/last
        GET /v2/fleet/builds/{build_id}  GET /v2/fleet/packages/{digest}
    """,
}

_PAGES = {
    "open": """
        GET /static/{version}/{name:path}  GET /favicon.ico  GET /signin  POST /signin
        GET /shared/{token}  GET /shared/{token}/runs/{trace_id}
    """,
    "read": """
        POST /signout
        GET /  GET /settings
        GET /jobs  GET /jobs/compare  GET /jobs/{job_id}
        GET /jobs/{job_id}/trajectories.jsonl  GET /events/jobs  GET /events/jobs/{job_id}
        GET /baseline  GET /baseline/{taskset_id}  GET /baseline/sitting/{sitting_id}
        GET /events/baseline/{sitting_id}  GET /baseline/sitting/{sitting_id}/here
        GET /baseline/sitting/{sitting_id}/pictures/{move}/{number}
        GET /environments  GET /environments/builds/{build_id}  GET /events/builds/{build_id}
        GET /environments/{environment_id}  GET /environments/{environment_id}/builds
        GET /environments/{environment_id}/running  GET /events/environments/{environment_id}
        GET /fleet  GET /people  GET /people/teams
        GET /tasksets  GET /tasksets/{taskset_id}  GET /tasksets/{taskset_id}/row
        GET /tasksets/{taskset_id}/rows.jsonl  GET /tasksets/{taskset_id}/edit
        GET /tasksets/{taskset_id}/imports
        GET /models  GET /models/{model_id}  GET /models/{model_id}/compare
        GET /search
        GET /review  GET /review/pairs  GET /tasksets/played
        GET /jobs.csv  GET /search.csv  GET /train.csv  GET /tasksets.csv  GET /environments.csv
        GET /train  GET /events/train  GET /train/launches/{launch_id}
        GET /events/train/launches/{launch_id}  GET /train/{run_id}  GET /train/{run_id}/curves/{name}
        GET /events/train/{run_id}  GET /train/{run_id}/steps  GET /train/{run_id}/steps/{number}
        GET /trace  GET /traces  GET /traces/{trace_id}  GET /trace/{trace_id}
        GET /trace/{trace_id}/steps  GET /trace/{trace_id}/head  GET /trace/{trace_id}/timeline
        GET /trace/{trace_id}/steps/{number}  GET /trace/{trace_id}/raw
        GET /trace/{trace_id}/steps/{number}/nested  GET /trace/{trace_id}/steps/{number}/image/{name}
        GET /trace/{trace_id}/compare  GET /trace/{trace_id}/compare/{other_id}
        GET /trace/{trace_id}/spans  GET /events/trace/{trace_id}
    """,
    "run": """
        GET /jobs/new  POST /jobs  POST /jobs/{job_id}/cancel  POST /jobs/{job_id}/resume
        POST /jobs/{job_id}/rerun  POST /jobs/{job_id}/share  POST /jobs/{job_id}/links/{link_id}/revoke
        POST /views  POST /views/{view_id}/remove
        POST /review/pairs
        POST /labels  POST /labels/{label_id}/remove
        POST /baseline/{taskset_id}/begin  POST /baseline/sitting/{sitting_id}/call
        POST /baseline/sitting/{sitting_id}/grid  POST /baseline/sitting/{sitting_id}/answer
        POST /baseline/sitting/{sitting_id}/leave
        GET /tasksets/new  POST /tasksets  POST /tasksets/{taskset_id}/rows
        POST /tasksets/{taskset_id}/remove  POST /tasksets/{taskset_id}/imports
        POST /models/{model_id}/evaluate
        GET /playground  POST /playground/turn  POST /playground/worlds  POST /playground/worlds/{world_id}/task
        POST /playground/worlds/{world_id}/grade  POST /playground/worlds/{world_id}/call
        POST /playground/worlds/{world_id}/close  POST /playground/rating
        POST /train/launches/{launch_id}/stop
    """,
    "train": """
        POST /models/{model_id}/fork  POST /models/{model_id}/checkpoints/{checkpoint_id}/name
        POST /models/{model_id}/head
        GET /train/new  POST /train  POST /train/{run_id}/stop  POST /train/{run_id}/resume
    """,
    "admin": """
        POST /fleet/nodes/{node_id}/{action}  GET /fleet/passes  POST /fleet/passes
        POST /fleet/passes/{key_id}/revoke
        GET /people/new  POST /people/keys  POST /people/keys/{key_id}/revoke  GET /people/audit
    """,
}


def _lines(table: dict[str, str]) -> dict[str, str]:
    words = {rule: text.split() for rule, text in table.items()}
    return {
        f"{method} {path}": rule
        for rule, found in words.items()
        for method, path in zip(found[::2], found[1::2], strict=True)
    }


API = _lines(_API)
PAGES = _lines(_PAGES)
"""Rule of each page and of its twin in JSON (`.json`)."""
