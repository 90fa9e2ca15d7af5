-- What the columns of the views are: psql shows it by \d+.

COMMENT ON COLUMN tessera.prepared_transactions.transaction IS 'transaction id; NULL: of this cluster, which has one on each node';
COMMENT ON COLUMN tessera.prepared_transactions.gid IS 'identifier that the client gave it';
COMMENT ON COLUMN tessera.prepared_transactions.prepared IS 'when it was prepared';
COMMENT ON COLUMN tessera.prepared_transactions.owner IS 'role that prepared it';
COMMENT ON COLUMN tessera.prepared_transactions.database IS 'database in which it was prepared; of this cluster: this one';

COMMENT ON COLUMN tessera.distributed_transactions.gid IS 'internal identifier: of the transaction, or of its part that is prepared here';
COMMENT ON COLUMN tessera.distributed_transactions.coordinator IS 'node that decides it, or has decided; NULL: one that was removed';
COMMENT ON COLUMN tessera.distributed_transactions.prepared IS 'when it was prepared on this node, or committed by it';
COMMENT ON COLUMN tessera.distributed_transactions.state IS
  'prepared: not decided as far as this node knows; committing, aborting: to be ended here; committed: not all others have confirmed';
COMMENT ON COLUMN tessera.distributed_transactions.age IS 'for how long';
COMMENT ON COLUMN tessera.distributed_transactions.waits_for IS 'what ends it';

COMMENT ON COLUMN tessera.ddl_operations.id IS 'identifier';
COMMENT ON COLUMN tessera.ddl_operations.kind IS 'create index, reindex index or reindex table';
COMMENT ON COLUMN tessera.ddl_operations.table_name IS 'table; NULL: it was dropped since';
COMMENT ON COLUMN tessera.ddl_operations.object_name IS 'object that it makes or makes anew';
COMMENT ON COLUMN tessera.ddl_operations.statement IS 'statement that each node runs';
COMMENT ON COLUMN tessera.ddl_operations.asked_by IS 'role that asked for it';
COMMENT ON COLUMN tessera.ddl_operations.runner IS 'node whose process runs it';
COMMENT ON COLUMN tessera.ddl_operations.state IS 'running, done or failed';
COMMENT ON COLUMN tessera.ddl_operations.phase IS 'build, or take back after an error that does not pass';
COMMENT ON COLUMN tessera.ddl_operations.nodes IS 'nodes that take part';
COMMENT ON COLUMN tessera.ddl_operations.nodes_done IS 'nodes that are known to be through';
COMMENT ON COLUMN tessera.ddl_operations.waiting IS 'nodes that are not';
COMMENT ON COLUMN tessera.ddl_operations.attempts IS 'how often it has failed';
COMMENT ON COLUMN tessera.ddl_operations.error IS 'with what at last; to administrators and who asked for it';
COMMENT ON COLUMN tessera.ddl_operations.started IS 'when it was asked for';
COMMENT ON COLUMN tessera.ddl_operations.finished IS 'when it ended; NULL: it runs';

COMMENT ON COLUMN tessera.stat_progress_migration.pid IS 'process';
COMMENT ON COLUMN tessera.stat_progress_migration.datid IS 'OID of this database';
COMMENT ON COLUMN tessera.stat_progress_migration.datname IS 'name of this database';
COMMENT ON COLUMN tessera.stat_progress_migration.migration_id IS 'migration';
COMMENT ON COLUMN tessera.stat_progress_migration.side IS 'donor or recipient: what this node is in it';
COMMENT ON COLUMN tessera.stat_progress_migration.phase IS 'what it is at';
COMMENT ON COLUMN tessera.stat_progress_migration.rows_done IS 'rows cloned so far';
COMMENT ON COLUMN tessera.stat_progress_migration.rows_total IS 'on the donor: estimate of the rows to clone; NULL: not made yet';
COMMENT ON COLUMN tessera.stat_progress_migration.bytes_done IS 'bytes cloned so far';
COMMENT ON COLUMN tessera.stat_progress_migration.mods_done IS 'changes passed on so far, that were made meanwhile';
COMMENT ON COLUMN tessera.stat_progress_migration.backlog_bytes IS 'bytes of WAL that are still to be read for changes';
COMMENT ON COLUMN tessera.stat_progress_migration.memory_bytes IS 'bytes of memory that the process has';
COMMENT ON COLUMN tessera.stat_progress_migration.memory_peak_bytes IS 'most that it has had';
COMMENT ON COLUMN tessera.stat_progress_migration.lag_ms IS 'how far the recipient is behind the donor, in ms; NULL: not known';
COMMENT ON COLUMN tessera.stat_progress_migration.gate_attempts IS 'how often the gate was closed for the last changes';
COMMENT ON COLUMN tessera.stat_progress_migration.pause_ms IS 'how long the gate was closed at last, in ms; NULL: it was not yet';
COMMENT ON COLUMN tessera.stat_progress_migration.waiting_for IS 'what it waits for; NULL: nothing';
COMMENT ON COLUMN tessera.stat_progress_migration.started IS 'when the process began';

COMMENT ON COLUMN tessera.migrations.id IS 'identifier';
COMMENT ON COLUMN tessera.migrations.table_name IS
  'table that was named, with which those of its group move; NULL: a schema moves, or the table was dropped since';
COMMENT ON COLUMN tessera.migrations.schema_name IS 'schema that moves; NULL: ranges of a table do';
COMMENT ON COLUMN tessera.migrations.min IS 'lower bound of the first range; to who may read the key';
COMMENT ON COLUMN tessera.migrations.max IS 'upper bound of the first range, which is not in it; to who may read the key';
COMMENT ON COLUMN tessera.migrations.ranges IS 'how many ranges move';
COMMENT ON COLUMN tessera.migrations.donor IS 'node that gives them';
COMMENT ON COLUMN tessera.migrations.recipient IS 'node that gets them';
COMMENT ON COLUMN tessera.migrations.state IS 'running, committed or aborted';
COMMENT ON COLUMN tessera.migrations.phase IS 'what it is at, or was at when it ended';
COMMENT ON COLUMN tessera.migrations.rows IS 'rows cloned so far';
COMMENT ON COLUMN tessera.migrations.bytes IS 'bytes cloned so far';
COMMENT ON COLUMN tessera.migrations.mods IS 'changes passed on so far, that were made meanwhile';
COMMENT ON COLUMN tessera.migrations.pause_ms IS 'how long the gate was closed at last, in ms; NULL: it was not';
COMMENT ON COLUMN tessera.migrations.waiting_for IS 'what it waits for; NULL: nothing';
COMMENT ON COLUMN tessera.migrations.error IS 'why it was aborted; to others than administrators only the SQLSTATE';
COMMENT ON COLUMN tessera.migrations.started IS 'when it was registered';
COMMENT ON COLUMN tessera.migrations.finished IS 'when it ended; NULL: it runs';
COMMENT ON COLUMN tessera.migrations.rows_total IS 'estimate of the rows that move; NULL: not known';
COMMENT ON COLUMN tessera.migrations.bytes_total IS 'estimate of the bytes that move; NULL: not known';

COMMENT ON COLUMN tessera.stat_routing.t1 IS 'statements sent whole to one shard';
COMMENT ON COLUMN tessera.stat_routing.whole IS 'modifications sent whole to several shards';
COMMENT ON COLUMN tessera.stat_routing.routed_inserts IS 'inserts routed row by row';
COMMENT ON COLUMN tessera.stat_routing.general IS 'statements answered from scans of shards';
COMMENT ON COLUMN tessera.stat_routing.parts IS 'statements run in parts';
COMMENT ON COLUMN tessera.stat_routing.stale_retries IS 'attempts whose routes were stale';
COMMENT ON COLUMN tessera.stat_routing.connections IS 'connections opened to other nodes';
COMMENT ON COLUMN tessera.stat_routing.gate_waits IS 'statements that have waited here at the gate of a migration';
COMMENT ON COLUMN tessera.stat_routing.gate_wait_time IS 'how long they have, added up, in ms';
COMMENT ON COLUMN tessera.stat_routing.stats_reset IS 'since when it is counted';

COMMENT ON COLUMN tessera.node_connections.node IS 'the other node';
COMMENT ON COLUMN tessera.node_connections.open IS 'connections open at present';
COMMENT ON COLUMN tessera.node_connections.in_use IS 'of these, used by a transaction';
COMMENT ON COLUMN tessera.node_connections.idle IS 'of these, not used';
COMMENT ON COLUMN tessera.node_connections.waiting IS 'sessions that wait for one';
COMMENT ON COLUMN tessera.node_connections.opened IS 'opened since the start of the server';
COMMENT ON COLUMN tessera.node_connections.waits IS 'how often a session has waited for one';
COMMENT ON COLUMN tessera.node_connections.exceeded IS 'opened beyond tessera.max_connections_per_shard';
COMMENT ON COLUMN tessera.node_connections.refused IS 'refused after tessera.connection_wait_timeout, or beyond tessera.max_connections_per_user';

COMMENT ON COLUMN tessera.shards.name IS 'name of the node';
COMMENT ON COLUMN tessera.shards.node_id IS 'number of the node, never used again';
COMMENT ON COLUMN tessera.shards.is_config IS 'it is the config node';
COMMENT ON COLUMN tessera.shards.draining IS 'it is being removed';
COMMENT ON COLUMN tessera.shards.database IS 'name of its database';
COMMENT ON COLUMN tessera.shards.timeline IS 'timeline of its server, as of its last registration';
COMMENT ON COLUMN tessera.shards.added IS 'when it became a node';
COMMENT ON COLUMN tessera.shards.weight IS
  'share of the data that it is to have, beside those of the others; NULL on other nodes than the config node';
COMMENT ON COLUMN tessera.shards.bytes IS 'bytes of its chunks as last measured; NULL on other nodes than the config node';
COMMENT ON COLUMN tessera.shards.load IS 'sessions at work on its chunks, on average; NULL on other nodes than the config node';
COMMENT ON COLUMN tessera.shards.silent_since IS
  'no attempt of this node to connect to it has succeeded since then; NULL: the last one has, or there was none';

COMMENT ON COLUMN tessera.routers.name IS 'name of the node';
COMMENT ON COLUMN tessera.routers.node_id IS 'number of the node, never used again';
COMMENT ON COLUMN tessera.routers.is_config IS 'it is the config node';
COMMENT ON COLUMN tessera.routers.database IS 'name of its database';
COMMENT ON COLUMN tessera.routers.timeline IS 'timeline of its server, as of its last registration';
COMMENT ON COLUMN tessera.routers.added IS 'when it became a node';
COMMENT ON COLUMN tessera.routers.silent_since IS
  'no attempt of this node to connect to it has succeeded since then; NULL: the last one has, or there was none';

COMMENT ON COLUMN tessera.schemas.schema IS 'name of the schema';
COMMENT ON COLUMN tessera.schemas.shard IS 'its primary shard: where its placed tables live';
COMMENT ON COLUMN tessera.schemas.sequences_on IS 'node that gives out the values of its sequences';
COMMENT ON COLUMN tessera.schemas.mod IS 'grows with each move of the schema';

COMMENT ON COLUMN tessera.tables.table_name IS 'table';
COMMENT ON COLUMN tessera.tables.kind IS 'placed, replicated or sharded';
COMMENT ON COLUMN tessera.tables.key IS 'columns of the shard key; NULL: it is not sharded';
COMMENT ON COLUMN tessera.tables.strategy IS 'range or hash; NULL: it is not sharded';
COMMENT ON COLUMN tessera.tables.primary_shard IS 'shard on which it lives, or which leads its copies; NULL: it is sharded';
COMMENT ON COLUMN tessera.tables.group_id IS 'table group, whose tables live together; NULL: it is not sharded';
COMMENT ON COLUMN tessera.tables.chunks IS 'how many chunks the group has';

COMMENT ON COLUMN tessera.chunks.table_name IS 'table; a chunk is shown for each of its group';
COMMENT ON COLUMN tessera.chunks.min IS 'lower bound; to who may read the key';
COMMENT ON COLUMN tessera.chunks.max IS 'upper bound, which is not in it; to who may read the key';
COMMENT ON COLUMN tessera.chunks.shard IS 'shard that owns it';
COMMENT ON COLUMN tessera.chunks.major IS 'version: grows with each move of the group';
COMMENT ON COLUMN tessera.chunks.minor IS 'version: grows with each split and merge';
COMMENT ON COLUMN tessera.chunks.jumbo IS 'it is too large, and cannot be split';
COMMENT ON COLUMN tessera.chunks.bytes IS 'estimate for all tables of the group; NULL: not known';
COMMENT ON COLUMN tessera.chunks.collected IS 'when that was measured';

COMMENT ON COLUMN tessera.chunk_distribution.table_name IS 'table';
COMMENT ON COLUMN tessera.chunk_distribution.shard IS 'shard';
COMMENT ON COLUMN tessera.chunk_distribution.chunks IS 'how many of the table''s chunks it owns';
COMMENT ON COLUMN tessera.chunk_distribution.bytes IS 'estimate of their bytes, of all tables of the group; NULL: not known';
COMMENT ON COLUMN tessera.chunk_distribution.bar IS 'the same, drawn: the longest is of the shard with most';
COMMENT ON COLUMN tessera.chunk_distribution.collected IS 'when the oldest of that was measured';

COMMENT ON COLUMN tessera.changelog.change_id IS 'number, in the order of the changes';
COMMENT ON COLUMN tessera.changelog.at IS 'when';
COMMENT ON COLUMN tessera.changelog.by IS 'role, or tessera: the cluster itself';
COMMENT ON COLUMN tessera.changelog.what IS 'what was done';
COMMENT ON COLUMN tessera.changelog.object IS 'with what';
COMMENT ON COLUMN tessera.changelog.before IS 'how it was; to administrators, of a table group also to who may read the key';
COMMENT ON COLUMN tessera.changelog.after IS 'how it is then; to the same';

COMMENT ON COLUMN tessera.range_deletions.table_name IS 'table; a range is shown for each of its group';
COMMENT ON COLUMN tessera.range_deletions.min IS 'lower bound; to who may read the key';
COMMENT ON COLUMN tessera.range_deletions.max IS 'upper bound, which is not in it; to who may read the key';

COMMENT ON COLUMN tessera.internal_sessions.pid IS 'process on this node';
COMMENT ON COLUMN tessera.internal_sessions.node IS 'node that has opened it';
COMMENT ON COLUMN tessera.internal_sessions.client_pid IS 'process there; NULL: what runs here are transactions of its own';

COMMENT ON COLUMN tessera.advisory_locks.classid IS 'first half of the key, as in pg_locks';
COMMENT ON COLUMN tessera.advisory_locks.objid IS 'second half of the key, as in pg_locks';
COMMENT ON COLUMN tessera.advisory_locks.objsubid IS '1: the key is a bigint, 2: two integers';
COMMENT ON COLUMN tessera.advisory_locks.mode IS 'ExclusiveLock or ShareLock';
COMMENT ON COLUMN tessera.advisory_locks.granted IS 'it is held; false: it is waited for';
COMMENT ON COLUMN tessera.advisory_locks.home IS 'node that keeps the lock';
COMMENT ON COLUMN tessera.advisory_locks.node IS 'node of the client''s session';
COMMENT ON COLUMN tessera.advisory_locks.pid IS 'process of that session, on its node; NULL: a prepared transaction';

COMMENT ON COLUMN tessera.stat_notifications.node IS 'the other node';
COMMENT ON COLUMN tessera.stat_notifications.queued IS 'notifications that wait to be passed on';
COMMENT ON COLUMN tessera.stat_notifications.forwarded IS 'passed on since the start of the server';
COMMENT ON COLUMN tessera.stat_notifications.dropped IS 'dropped since the start of the server';
COMMENT ON COLUMN tessera.stat_notifications.listening IS 'the forwarder of this node runs';

COMMENT ON COLUMN tessera.hot_chunks.table_name IS 'one table of the group';
COMMENT ON COLUMN tessera.hot_chunks.min IS 'lower bound; to who may read the key';
COMMENT ON COLUMN tessera.hot_chunks.max IS 'upper bound, which is not in it; to who may read the key';
COMMENT ON COLUMN tessera.hot_chunks.shard IS 'shard that owns it';
COMMENT ON COLUMN tessera.hot_chunks.statements IS 'statements a second';
COMMENT ON COLUMN tessera.hot_chunks.load IS 'sessions at work on it, on average';
COMMENT ON COLUMN tessera.hot_chunks.hot_key IS 'key that most of that is about; to who may read the key; NULL: not known';
COMMENT ON COLUMN tessera.hot_chunks.hot_share IS 'its share of the load, from 0 to 1';
COMMENT ON COLUMN tessera.hot_chunks.advice IS 'what helps';
COMMENT ON COLUMN tessera.hot_chunks.measured IS 'when';

COMMENT ON COLUMN tessera.zones.zone IS 'name of the zone';
COMMENT ON COLUMN tessera.zones.shard IS 'one of its shards';

COMMENT ON COLUMN tessera.zone_ranges.table_name IS 'table; a range is shown for each of its group';
COMMENT ON COLUMN tessera.zone_ranges.zone IS 'where its rows are to lie';
COMMENT ON COLUMN tessera.zone_ranges.min IS 'lower bound; to who may read the key';
COMMENT ON COLUMN tessera.zone_ranges.max IS 'upper bound, which is not in it; to who may read the key';

COMMENT ON COLUMN tessera.balancer_status.id IS 'number of the action';
COMMENT ON COLUMN tessera.balancer_status.state IS 'running, queued, done, failed or dropped';
COMMENT ON COLUMN tessera.balancer_status.kind IS 'move, merge, or read: its table group cannot be read';
COMMENT ON COLUMN tessera.balancer_status.table_name IS 'table whose group it is about; NULL: a schema';
COMMENT ON COLUMN tessera.balancer_status.schema_name IS 'schema that moves; NULL: it is about a table';
COMMENT ON COLUMN tessera.balancer_status.min IS 'lower bound of the first range; to who may read the key';
COMMENT ON COLUMN tessera.balancer_status.max IS 'upper bound of the first range, which is not in it; to who may read the key';
COMMENT ON COLUMN tessera.balancer_status.ranges IS 'how many ranges one migration moves';
COMMENT ON COLUMN tessera.balancer_status.donor IS 'shard that gives them; NULL: whoever owns them';
COMMENT ON COLUMN tessera.balancer_status.recipient IS 'shard that gets them; NULL: the balancer chooses';
COMMENT ON COLUMN tessera.balancer_status.reason IS 'requested, top, draining, zone, group, node, empty, cold or unreadable (see doc/reference.md)';
COMMENT ON COLUMN tessera.balancer_status.detail IS 'the reason in figures';
COMMENT ON COLUMN tessera.balancer_status.bytes IS 'estimate of what moves';
COMMENT ON COLUMN tessera.balancer_status.bytes_done IS 'bytes cloned so far';
COMMENT ON COLUMN tessera.balancer_status.remaining IS 'how long it may still take, by the speed of the last moves';
COMMENT ON COLUMN tessera.balancer_status.by IS 'role that asked for it, or that of the balancer';
COMMENT ON COLUMN tessera.balancer_status.attempts IS 'how often it was tried';
COMMENT ON COLUMN tessera.balancer_status.asked IS 'when it was asked for';
COMMENT ON COLUMN tessera.balancer_status.started IS 'when it was begun';
COMMENT ON COLUMN tessera.balancer_status.finished IS 'when it ended';
COMMENT ON COLUMN tessera.balancer_status.not_before IS 'it is not tried again before';
COMMENT ON COLUMN tessera.balancer_status.migration_id IS 'the last migration of it';
COMMENT ON COLUMN tessera.balancer_status.waiting_for IS
  'the last error, to others than administrators only the SQLSTATE; or what the migration waits for';

COMMENT ON COLUMN tessera.draining_shards.shard IS 'shard that is being removed';
COMMENT ON COLUMN tessera.draining_shards.chunks IS 'chunks that it still owns';
COMMENT ON COLUMN tessera.draining_shards.schemas IS 'schemas whose tables or sequences it still has';
COMMENT ON COLUMN tessera.draining_shards.bytes_left IS 'estimate of what is still to move';
COMMENT ON COLUMN tessera.draining_shards.moves IS 'moves that run';
COMMENT ON COLUMN tessera.draining_shards.bytes_per_second IS 'how fast those of the last five minutes were';
COMMENT ON COLUMN tessera.draining_shards.remaining IS 'how long it may still take at that; NULL: not known';
COMMENT ON COLUMN tessera.draining_shards.in_the_way IS
  'what is in the way or waited for; NULL: nothing; why an empty shard cannot leave yet is for tessera_admin to read';

COMMENT ON COLUMN tessera.clocks.node IS 'node';
COMMENT ON COLUMN tessera.clocks.cluster_time IS 'its cluster time; NULL: it does not answer';
COMMENT ON COLUMN tessera.clocks.config_time IS 'its config time; NULL: it does not answer';
COMMENT ON COLUMN tessera.clocks.topology_time IS 'its topology time; NULL: it does not answer';
COMMENT ON COLUMN tessera.clocks.wall_clock IS 'the clock of its server; NULL: it does not answer';
COMMENT ON COLUMN tessera.clocks.ahead IS 'how far its cluster time is ahead of the clock of the server that is asked';

COMMENT ON COLUMN tessera.restore_points.name IS 'name';
COMMENT ON COLUMN tessera.restore_points.begun IS 'when it was begun';
COMMENT ON COLUMN tessera.restore_points.by IS 'role that made it';
COMMENT ON COLUMN tessera.restore_points.cluster_time IS 'its cluster time; NULL: it is not on all nodes, or not known to be';
COMMENT ON COLUMN tessera.restore_points.complete IS 'the cluster can be restored to it';

COMMENT ON COLUMN tessera.health.severity IS 'error, warning or notice';
COMMENT ON COLUMN tessera.health.subject IS 'what it is about';
COMMENT ON COLUMN tessera.health.problem IS 'what is wrong with it';
COMMENT ON COLUMN tessera.health.what_to_do IS 'what an operator can do';

COMMENT ON COLUMN tessera.cluster_activity.node IS 'node to which the client has connected';
COMMENT ON COLUMN tessera.cluster_activity.pid IS 'process of its session there: node and pid are what tessera.cancel and tessera.terminate take';
COMMENT ON COLUMN tessera.cluster_activity.usename IS 'who has logged in';
COMMENT ON COLUMN tessera.cluster_activity.datname IS 'database of that node';
COMMENT ON COLUMN tessera.cluster_activity.application IS 'its application_name';
COMMENT ON COLUMN tessera.cluster_activity.client_addr IS
  'address of the client; NULL: by a socket of the node''s machine, or hidden, as all that follows, from who is neither of that role nor of '
  'pg_read_all_stats';
COMMENT ON COLUMN tessera.cluster_activity.state IS 'as in pg_stat_activity: active, idle, idle in transaction, ...';
COMMENT ON COLUMN tessera.cluster_activity.query_start IS 'when its statement began, or the last one; whole seconds';
COMMENT ON COLUMN tessera.cluster_activity.wait IS 'type and name of what the process waits for; NULL: it does not wait';
COMMENT ON COLUMN tessera.cluster_activity.parts IS
  'processes of other nodes that run something for it, or are in its transaction: node:pid, ...; NULL: none';
COMMENT ON COLUMN tessera.cluster_activity.session IS 'logical session that it uses (tessera.sessions); NULL: none';
COMMENT ON COLUMN tessera.cluster_activity.query IS
  'its statement, or the last one; "<insufficient privilege>" to who is neither of that role nor of pg_read_all_stats';
COMMENT ON COLUMN tessera.cluster_activity.trouble IS 'why the node has not answered: what runs there is not known';

COMMENT ON COLUMN tessera.lock_waits.node IS 'node of the session that waits';
COMMENT ON COLUMN tessera.lock_waits.pid IS 'its process there';
COMMENT ON COLUMN tessera.lock_waits.usename IS 'who has logged in there; NULL: the node has not answered';
COMMENT ON COLUMN tessera.lock_waits.by_node IS 'node of the session that is in the way; NULL: a prepared transaction is';
COMMENT ON COLUMN tessera.lock_waits.by_pid IS 'its process there; NULL: a prepared transaction';
COMMENT ON COLUMN tessera.lock_waits.by_user IS 'who has logged in there, or has prepared the transaction';
COMMENT ON COLUMN tessera.lock_waits.gid IS
  'identifier of the prepared transaction, as the client has given it; of the cluster''s own: as in tessera.distributed_transactions of on_node';
COMMENT ON COLUMN tessera.lock_waits.on_node IS 'node of the lock, or of the process that asks for locks on several nodes; with trouble: that node';
COMMENT ON COLUMN tessera.lock_waits.relation IS 'table or index that is locked, or whose row is; NULL: none, or not known';
COMMENT ON COLUMN tessera.lock_waits.lock IS
  'mode of a lock on a relation; row; transactionid (of a row, too); "of several nodes": of a statement that asks for them in short attempts; '
  'else its type';
COMMENT ON COLUMN tessera.lock_waits.since IS 'since when it waits; whole seconds';
COMMENT ON COLUMN tessera.lock_waits.prepared_for IS 'how long ago the transaction was prepared';
COMMENT ON COLUMN tessera.lock_waits.query IS 'statement that waits; "<insufficient privilege>" as in tessera.cluster_activity';
COMMENT ON COLUMN tessera.lock_waits.by_query IS 'statement of the session that is in the way, or its last one';
COMMENT ON COLUMN tessera.lock_waits.trouble IS 'why the node has not answered: waits there are not known';
