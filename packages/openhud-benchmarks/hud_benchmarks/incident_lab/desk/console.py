"""The database console: catalogue, sessions, slow queries, plans, migrations."""

from hud_benchmarks.incident_lab.desk.query import Query

TOOLS = [
    Query("list_tables", "Tables with their rows and scans.", "",
          "SELECT relname AS table_name, n_live_tup, seq_scan, idx_scan FROM pg_stat_user_tables ORDER BY 1"),
    Query("describe_table", "Columns of a table.", "table",
          "SELECT column_name, data_type, is_nullable FROM pg_columns WHERE table_name = :table"),
    Query("list_indexes", "Indexes, of a table or of all.", "table?",
          "SELECT tablename AS table_name, indexname, indexdef FROM pg_indexes WHERE :table IN ('', tablename) ORDER BY 1, 2"),
    Query("index_usage", "How often indexes were used, of a table or of all.", "table?",
          "SELECT relname AS table_name, indexrelname AS indexname, idx_scan FROM pg_stat_user_indexes WHERE :table IN "
          "('', relname) ORDER BY 3 DESC"),
    Query("sequential_scans", "Tables by rows read without an index.", "",
          "SELECT relname AS table_name, seq_scan, seq_tup_read FROM pg_stat_user_tables ORDER BY 3 DESC"),
    Query("table_sizes", "Bytes of each table with its indexes.", "",
          "SELECT relname AS table_name, bytes FROM pg_sizes ORDER BY 2 DESC"),
    Query("list_constraints", "Constraints of a table.", "table",
          "SELECT conname, definition FROM pg_constraints WHERE table_name = :table"),
    Query("list_sequences", "Sequences and how far they are.", "",
          "SELECT sequencename, data_type, last_value, max_value FROM pg_sequences"),
    Query("list_roles", "Roles.", "", "SELECT rolname, rolcanlogin, rolconnlimit FROM pg_roles"),
    Query("list_grants", "What a role may do.", "role",
          "SELECT table_name, privileges FROM pg_grants WHERE grantee = :role"),
    Query("list_settings", "Settings of the server.", "", "SELECT name, setting, unit FROM pg_settings"),
    Query("list_migrations", "Migrations, the latest first.", "",
          "SELECT version, author, applied_at, statement FROM schema_migrations ORDER BY version DESC"),
    Query("get_migration", "One migration.", "version",
          "SELECT * FROM schema_migrations WHERE version = :version"),
    Query("search_migrations", "Migrations whose statement contains a text.", "text",
          "SELECT version, applied_at, statement FROM schema_migrations WHERE statement LIKE '%' || :text || '%'"),
    Query("connections", "Connections by service and state.", "",
          "SELECT service, state, connections FROM pg_connections ORDER BY 1, 2"),
    Query("active_sessions", "Sessions of a service that were seen at work, the latest first.", "service",
          "SELECT substr(time, 12, 8) time, state, transaction_seconds, query FROM pg_stat_activity "
          "WHERE service = :service ORDER BY pg_stat_activity.time DESC"),
    Query("idle_in_transaction", "Transactions of a service that were open and waiting, by query.", "service",
          "SELECT query, count(*) times_seen, max(transaction_seconds) longest FROM pg_stat_activity WHERE service = "
          ":service AND state = 'idle in transaction' GROUP BY 1 ORDER BY 2 DESC"),
    Query("longest_transactions", "The longest open transactions, over all services.", "",
          "SELECT service, state, max(transaction_seconds) longest, query FROM pg_stat_activity GROUP BY service, state, "
          "query ORDER BY 3 DESC"),
    Query("list_locks", "Locks by service.", "", "SELECT service, mode, granted, locks FROM pg_locks"),
    Query("waits", "What sessions waited for.", "",
          "SELECT service, wait_event_type, wait_event, count(*) times FROM pg_stat_activity GROUP BY 1, 2, 3 "
          "ORDER BY 4 DESC"),
    Query("database_stats", "Commits, rollbacks, blocks read, deadlocks.", "", "SELECT * FROM pg_database"),
    Query("slow_queries", "Queries of a service that the server logged as slow.", "service",
          "SELECT substr(time, 12, 8) time, message FROM pg_log WHERE service = :service AND message LIKE '%duration:%' "
          "ORDER BY pg_log.time DESC"),
    Query("server_log", "The server's log, of a service or of all.", "service?",
          "SELECT substr(time, 12, 8) time, service, message FROM pg_log WHERE :service IN ('', service) "
          "ORDER BY pg_log.time DESC"),
    Query("server_errors", "Errors in the server's log, by service.", "",
          "SELECT service, substr(message, 1, 90) message, count(*) times FROM pg_log WHERE message LIKE 'ERROR%' "
          "OR message LIKE 'FATAL%' GROUP BY 1, 2 ORDER BY 3 DESC"),
    Query("list_queries", "Queries whose plans can be asked for.", "", "SELECT query FROM pg_plans"),
    Query("explain_query", "The plan of a query, as list_queries names it.", "query",
          "SELECT statement, plan FROM pg_plans WHERE query = :query"),
    Query("orders_by_status", "Today's orders by status.", "", "SELECT status, orders FROM orders_by_status"),
    Query("latest_orders", "The latest orders.", "", "SELECT id, customer_id, total_cents, status, created_at FROM orders_sample"),
    Query("latest_payments", "The latest payments.", "", "SELECT id, order_id, amount_cents, created_at FROM payments_sample"),
]  # fmt: skip

SQL_TABLES = frozenset({
    "pg_indexes", "pg_stat_user_tables", "pg_stat_user_indexes", "pg_settings", "pg_roles", "pg_locks",
    "pg_columns", "pg_constraints", "pg_sizes", "pg_grants", "pg_connections", "pg_database", "pg_sequences",
    "pg_stat_activity", "pg_log", "pg_plans", "schema_migrations", "orders_by_status", "orders_sample",
    "payments_sample", "products_sample", "customers_sample", "shipments_sample",
})  # fmt: skip
"""Tables that free SQL may read."""
