"""The deploy platform: deployments, variables and feature flags; and the cache with its queues."""

from hud_benchmarks.incident_lab.desk.query import Query

CHANGES = [
    Query("list_apps", "Services and their releases.", "", "SELECT service, release, ready FROM services"),
    Query("get_app", "One service.", "service", "SELECT * FROM services WHERE service = :service"),
    Query("list_deployments", "Deployments of a service, the latest first.", "service",
          "SELECT time, release, author, message, id FROM deployments WHERE service = :service ORDER BY time DESC"),
    Query("recent_deployments", "The latest deployments, over all services.", "",
          "SELECT time, service, release, author, message FROM deployments ORDER BY time DESC LIMIT 6"),
    Query("get_deployment", "One deployment.", "id", "SELECT * FROM deployments WHERE id = :id"),
    Query("find_release", "The deployment of a release.", "release",
          "SELECT * FROM deployments WHERE release = :release"),
    Query("deployments_by_author", "Deployments of a person.", "author",
          "SELECT time, service, release, message FROM deployments WHERE author = :author ORDER BY time DESC"),
    Query("list_variables", "Variables of a service.", "service",
          "SELECT name, value FROM variables WHERE service = :service ORDER BY 1"),
    Query("get_variable", "A variable, in all services.", "name",
          "SELECT service, value FROM variables WHERE name = :name"),
    Query("list_flags", "Feature flags and their state.", "", "SELECT flag, enabled FROM flags ORDER BY 1"),
    Query("get_flag", "State and changes of a flag.", "flag",
          "SELECT f.flag, enabled, substr(time, 12, 8) changed, before, after, by FROM flags f LEFT JOIN flag_changes c "
          "ON c.flag = f.flag WHERE f.flag = :flag"),
    Query("flag_changes", "Changes of a service's flags, the latest first.", "service",
          "SELECT time, flag, before, after, by FROM flag_changes WHERE flag LIKE :service || '.%' ORDER BY time DESC"),
    Query("recent_flag_changes", "The latest changes of flags, over all services.", "",
          "SELECT substr(time, 12, 8) time, flag, before, after, by FROM flag_changes ORDER BY flag_changes.time DESC"),
    Query("changes", "Deployments and flag changes of a service, the latest first.", "service",
          "SELECT time, 'deploy' AS kind, release AS what, message FROM deployments WHERE service = :service UNION ALL "
          "SELECT time, 'flag', flag, before || ' to ' || after FROM flag_changes WHERE flag LIKE :service || '.%' "
          "ORDER BY 1 DESC"),
]  # fmt: skip

QUEUE = [
    Query("cache_info", "State of the cache.", "", "SELECT field, value FROM cache_info"),
    Query("cache_keys", "Keys of the cache.", "", "SELECT key, type, size, ttl FROM cache_keys"),
    Query("cache_clients", "Clients of the cache.", "", "SELECT name, command, idle FROM cache_clients"),
    Query("cache_slow_commands", "Slow commands of the cache.", "", "SELECT * FROM cache_slowlog"),
    Query("list_queues", "Queues and how many messages they hold.", "",
          "SELECT key AS queue, size AS messages FROM cache_keys WHERE type = 'list'"),
    Query("peek_queue", "The messages that are next in a queue; those of a queue ending in :taken are being worked on.",
          "queue", "SELECT position, message FROM queue_messages WHERE queue = :queue ORDER BY position LIMIT 8"),
    Query("find_message", "Messages that contain a text.", "text",
          "SELECT queue, position, message FROM queue_messages WHERE message LIKE '%' || :text || '%'"),
    Query("queue_history", "How many messages a queue held, the latest first.", "queue",
          "SELECT substr(time, 12, 8) time, value AS messages FROM metrics WHERE metric = 'queue_depth' AND labels = "
          "'queue=' || :queue ORDER BY metrics.time DESC"),
    Query("consumer_progress", "Messages that the worker has done, the latest sample first.", "",
          "SELECT substr(time, 12, 8) time, container, value AS done FROM metrics WHERE metric = 'messages_done_total' "
          "ORDER BY metrics.time DESC"),
]  # fmt: skip

TOOLS = [*CHANGES, *QUEUE]
