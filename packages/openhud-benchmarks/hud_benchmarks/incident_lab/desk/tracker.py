"""The error tracker: issues, events and releases; traces, metrics and what customers saw."""

from hud_benchmarks.incident_lab.desk.query import Query

ISSUES = [
    Query("list_projects", "Services that report errors.", "",
          "SELECT service, count(*) issues, sum(events) events FROM issues GROUP BY 1 ORDER BY 3 DESC"),
    Query("list_issues", "Issues of a service, the latest first.", "service",
          "SELECT issue, error, message, events, substr(first_seen, 12, 8) first_seen, substr(last_seen, 12, 8) "
          "last_seen FROM issues WHERE service = :service ORDER BY last_seen DESC"),
    Query("search_issues", "Issues whose error or message contains a text.", "text",
          "SELECT issue, service, error, message, events FROM issues WHERE error || ' ' || message LIKE "
          "'%' || :text || '%' ORDER BY events DESC"),
    Query("busiest_issues", "The issues with most events, over all services.", "",
          "SELECT issue, service, error, message, events FROM issues ORDER BY events DESC"),
    Query("newest_issues", "The issues that were first seen last, over all services.", "",
          "SELECT issue, service, error, message, substr(first_seen, 12, 8) first_seen, events FROM issues "
          "ORDER BY first_seen DESC"),
    Query("get_issue", "Everything about an issue.", "issue", "SELECT * FROM issues WHERE issue = :issue"),
    Query("list_events", "Latest events of an issue.", "issue",
          "SELECT event, substr(time, 12, 12) time, transaction_name, message, release, container FROM events "
          "WHERE issue = :issue ORDER BY time DESC"),
    Query("get_event", "One event.", "event", "SELECT * FROM events WHERE event = :event"),
    Query("get_stack_trace", "The stack trace of an issue's latest event, with code.", "issue",
          "SELECT error, file, function, line, code FROM frames WHERE issue = :issue ORDER BY rowid"),
    Query("get_stack_variables", "Local variables in the stack of an issue's latest event.", "issue",
          "SELECT function, line, variables FROM frames WHERE issue = :issue ORDER BY rowid"),
    Query("get_breadcrumbs", "What an issue's latest event was preceded by.", "issue",
          "SELECT category, message FROM breadcrumbs WHERE issue = :issue ORDER BY rowid"),
    Query("errors_by_release", "Errors of a service by release.", "service",
          "SELECT last_release release, error, sum(events) events FROM issues WHERE service = :service "
          "GROUP BY 1, 2 ORDER BY 3 DESC"),
    Query("errors_by_container", "Events of a service by container.", "service",
          "SELECT container, error, count(*) events FROM events WHERE service = :service GROUP BY 1, 2"),
    Query("errors_by_route", "Events of a service by route.", "service",
          "SELECT transaction_name route, error, count(*) events FROM events WHERE service = :service "
          "GROUP BY 1, 2 ORDER BY 3 DESC"),
    Query("errors_by_class", "How often each class of error occurs, over all services.", "",
          "SELECT error, count(DISTINCT service) services, sum(events) events FROM issues GROUP BY 1 ORDER BY 3 DESC"),
]  # fmt: skip

PERFORMANCE = [
    Query("slowest_transactions", "The slowest recorded transactions of a service.", "service",
          "SELECT trace, substr(time, 12, 8) time, name, status, milliseconds FROM transactions "
          "WHERE service = :service ORDER BY milliseconds DESC"),
    Query("failed_transactions", "Transactions of a service that failed.", "service",
          "SELECT trace, name, status, count(*) times FROM transactions WHERE service = :service "
          "AND status NOT IN ('ok', 'None') GROUP BY name, status ORDER BY times DESC"),
    Query("transaction_summary", "Transactions of a service by route.", "service",
          "SELECT name, count(*) times, round(avg(milliseconds)) mean_ms, max(milliseconds) max_ms FROM transactions "
          "WHERE service = :service GROUP BY 1 ORDER BY 3 DESC"),
    Query("get_trace", "The transactions of a trace.", "trace",
          "SELECT service, name, status, milliseconds FROM transactions WHERE trace = :trace ORDER BY time"),
    Query("list_spans", "The longest spans of a trace.", "trace",
          "SELECT service, operation, description, milliseconds FROM spans WHERE trace = :trace"),
    Query("slowest_spans", "The slowest spans of a service.", "service",
          "SELECT trace, operation, description, milliseconds FROM spans WHERE service = :service "
          "ORDER BY milliseconds DESC"),
    Query("edge_error_rates", "What customers saw: failures by route, in the last 10 seconds and before.", "",
          "WITH last AS (SELECT max(time) AS time FROM edge_requests), cut AS (SELECT strftime('%Y-%m-%d %H:%M:%f', "
          "time, '-10 seconds') AS time FROM last) SELECT route, round(avg(CASE WHEN e.time > cut.time THEN status = 0 "
          "OR status >= 500 END), 2) failing_now, round(avg(CASE WHEN e.time <= cut.time THEN status = 0 OR status >= "
          "500 END), 2) before FROM edge_requests e, cut GROUP BY route ORDER BY 2 DESC"),
    Query("edge_latencies", "What customers saw: seconds by route.", "",
          "SELECT route, count(*) requests, round(avg(seconds), 2) mean, max(seconds) slowest FROM edge_requests "
          "GROUP BY 1 ORDER BY 3 DESC"),
    Query("edge_requests", "Latest requests of customers to a route.", "route",
          "SELECT substr(time, 12, 8) time, status, seconds FROM edge_requests WHERE route = :route ORDER BY time DESC"),
    Query("list_metrics", "Metrics that a service has.", "service",
          "SELECT DISTINCT metric, labels FROM metrics WHERE service = :service ORDER BY 1, 2"),
    Query("get_metric", "A metric's latest samples.", "service metric",
          "SELECT substr(time, 12, 8) time, container, labels, value FROM metrics WHERE service = :service AND metric = "
          ":metric ORDER BY time DESC"),
    Query("compare_metrics", "Each metric of a service: lowest, highest and latest value.", "service",
          "SELECT metric, labels, min(value) low, max(value) high, value latest FROM (SELECT * FROM metrics WHERE "
          "service = :service AND metric NOT LIKE 'http%' ORDER BY time) GROUP BY metric, labels"),
    Query("memos", "How many results a service remembers, by memo.", "service",
          "SELECT substr(labels, 6) memo, min(value) low, max(value) high FROM metrics WHERE service = :service "
          "AND metric = 'memo_entries' GROUP BY 1 ORDER BY 3 DESC"),
    Query("pool_usage", "Database connections that services have lent out, and requests that wait for one.", "",
          "SELECT service, max(CASE WHEN metric = 'db_pool_in_use' THEN value END) most_in_use, max(CASE WHEN metric = "
          "'db_pool_waiting' THEN value END) most_waiting FROM metrics WHERE metric LIKE 'db_pool%' GROUP BY 1"),
    Query("request_counts", "Requests that a service answered, by route and status.", "service",
          "SELECT labels, max(value) requests FROM metrics WHERE service = :service AND metric = "
          "'http_requests_total' GROUP BY 1 ORDER BY 2 DESC"),
]  # fmt: skip

TOOLS = [*ISSUES, *PERFORMANCE]
