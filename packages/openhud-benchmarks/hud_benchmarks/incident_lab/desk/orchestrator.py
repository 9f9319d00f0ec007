"""The container orchestrator: pods, events, logs, memory, secrets."""

from hud_benchmarks.incident_lab.desk.query import Query

TOOLS = [
    Query("get_pods", "Pods that should be running.", "",
          "SELECT container AS pod, service, state, reason, last_reason, restarts FROM containers "
          "WHERE state <> 'Terminated'"),
    Query("get_all_pods", "Pods, those that were replaced included.", "",
          "SELECT container AS pod, service, state, reason, restarts FROM containers"),
    Query("describe_pod", "One pod.", "pod", "SELECT * FROM containers WHERE container = :pod"),
    Query("pods_of", "Pods of a service.", "service",
          "SELECT container AS pod, state, reason, last_reason, exit_code, restarts FROM containers WHERE service = "
          ":service AND state <> 'Terminated'"),
    Query("get_services", "Services, their ports and whether they are ready.", "",
          "SELECT service, port, tls, replicas, ready FROM services"),
    Query("describe_service", "One service.", "service", "SELECT * FROM services WHERE service = :service"),
    Query("unready_services", "Services without a ready pod.", "", "SELECT service, replicas FROM services WHERE ready = 0"),
    Query("get_events", "The latest events.", "",
          "SELECT substr(time, 12, 8) time, type, reason, object, message FROM k8s_events ORDER BY k8s_events.time DESC"),
    Query("get_warnings", "Events of type Warning, counted.", "",
          "SELECT reason, object, message, count(*) times FROM k8s_events WHERE type = 'Warning' GROUP BY 1, 2, 3"),
    Query("events_of", "Events of a pod or a service.", "object",
          "SELECT substr(time, 12, 8) time, type, reason, object, message FROM k8s_events WHERE object = :object OR object LIKE "
          ":object || '-%' ORDER BY k8s_events.time DESC"),
    Query("pod_logs", "The end of a pod's log.", "pod",
          "SELECT substr(time, 12, 8) time, level, message FROM logs WHERE container = :pod ORDER BY logs.rowid DESC"),
    Query("pod_logs_start", "The start of a pod's log.", "pod",
          "SELECT substr(time, 12, 8) time, level, message FROM logs WHERE container = :pod ORDER BY logs.rowid"),
    Query("service_logs", "The latest lines of a service's log.", "service",
          "SELECT substr(time, 12, 8) time, level, message FROM logs WHERE service = :service ORDER BY logs.rowid DESC"),
    Query("error_logs", "The latest errors in a service's log.", "service",
          "SELECT substr(time, 12, 8) time, message FROM logs WHERE service = :service AND level IN ('ERROR', 'CRITICAL') "
          "ORDER BY logs.rowid DESC"),
    Query("search_logs", "Lines of all logs that contain a text.", "text",
          "SELECT substr(time, 12, 8) time, service, message FROM logs WHERE message LIKE '%' || :text || '%' "
          "ORDER BY logs.rowid DESC"),
    Query("log_levels", "Lines of log by service and level.", "",
          "SELECT service, level, count(*) AS lines FROM logs WHERE level <> '' GROUP BY 1, 2 ORDER BY 1, 3 DESC"),
    Query("top_pods", "Memory of each service in MiB: highest and latest.", "",
          "SELECT service, round(max(value) / 1048576) highest_mib, round(value / 1048576) latest_mib FROM (SELECT * FROM "
          "metrics WHERE metric = 'process_resident_bytes' ORDER BY time) GROUP BY 1"),
    Query("memory_history", "Memory of a service over time, the latest first.", "service",
          "SELECT substr(time, 12, 8) time, container, round(value / 1048576) mib FROM metrics WHERE service = :service "
          "AND metric = 'process_resident_bytes' ORDER BY metrics.time DESC"),
    Query("memory_limits", "What services may use, in MiB.", "", "SELECT service, memory_limit_mib FROM services"),
    Query("restarts", "Pods that were restarted.", "",
          "SELECT container AS pod, restarts, last_reason, exit_code FROM containers WHERE restarts > 0"),
    Query("evicted_pods", "Pods that were evicted.", "",
          "SELECT container AS pod, service, state FROM containers WHERE reason = 'Evicted'"),
    Query("get_secrets", "TLS secrets and the pods that mount them.", "",
          "SELECT secret, mounted_by FROM certificates"),
    Query("describe_secret", "The certificate in a TLS secret.", "secret",
          "SELECT secret, mounted_by, serial, not_before, not_after, (SELECT max(time) FROM edge_requests) AS now "
          "FROM certificates WHERE secret = :secret"),
    Query("rollout_history", "Pods of a service in the order in which they came.", "service",
          "SELECT container AS pod, started, state FROM containers WHERE service = :service ORDER BY started"),
    Query("get_config", "Environment of a service's pods.", "service",
          "SELECT name, value FROM variables WHERE service = :service"),
    Query("get_replica_sets", "When services were scaled.", "",
          "SELECT substr(time, 12, 8) time, object, message FROM k8s_events WHERE reason = 'ScalingReplicaSet' "
          "ORDER BY k8s_events.time DESC"),
]  # fmt: skip
