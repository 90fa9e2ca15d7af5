/*
 * protocol.h
 *	  Version of what nodes say to each other; it grows with every change of control/calls.def or of what goes along with a statement.
 *
 * Two nodes speak the lower one of their protocols, if neither is below the oldest that the other one knows: so nodes of two neighbouring versions of
 * the extension work together while a cluster is upgraded node by node. An argument or a column that a protocol brings says so in control/calls.def
 * ("since"). make PROTOCOL=... builds one of a higher number, for the test of it.
 */
#ifndef TESSERA_PROTOCOL_H
#define TESSERA_PROTOCOL_H

#ifndef TESSERA_PROTOCOL
#define TESSERA_PROTOCOL 14
#endif

/* The oldest that this version of the extension can speak. */
#define TESSERA_OLDEST_PROTOCOL 5

/* From this one on shards say their cluster time with their answers, and are told their caller's. */
#define TESSERA_TIME_PROTOCOL 6

/* From this one on a transaction over several nodes has one commit time on all of them, and statements can be given a common snapshot. */
#define TESSERA_CUT_PROTOCOL 7

/* From this one on rows of replicated tables are carried to the copies as the user who has changed them. */
#define TESSERA_CARRY_PROTOCOL 8

/*
 * Beside its protocol a caller says in that number of hello that no client is behind it, but a worker of the cluster. To a node that does not know of
 * it the number is one more protocol above its own.
 */
#define TESSERA_CALLER_IS_WORKER 0x10000

/* From this one on the config node is asked whether an owner may have so many chunks and table groups before anything is done for them. */
#define TESSERA_LIMITS_PROTOCOL 9

/* From this one on a move brings the values of generated columns as they are stored. */
#define TESSERA_GENERATED_PROTOCOL 9

/* From this one on shards say which of several rows an INSERT returns (tessera.source_position). */
#define TESSERA_POSITION_PROTOCOL 10

/* From this one on shards know exact text (tessera_internal.exact_text), so that results are binary, whatever their types. */
#define TESSERA_EXACT_PROTOCOL 10

/* From this one on the COMMIT PREPARED of a part says the transaction's time. */
#define TESSERA_PREPARED_TIME_PROTOCOL 11

/* From this one on what shards say of their transactions has SQLSTATEs of its own: TS005 and TS006 are clients' now. */
#define TESSERA_WORDS_PROTOCOL 12

/* From this one on a coordinator can be asked whether it has decided, without deciding for it (call peek). */
#define TESSERA_PEEK_PROTOCOL 13

/* From this one on shards are told when the transaction and the statement began where the client gave them. */
#define TESSERA_START_PROTOCOL 13

/* From this one on a move brings XML as text: its binary form loses the declaration. */
#define TESSERA_XML_PROTOCOL 13

/* From this one on a shard says whether it can be read as of a time that the router has chosen (call meet), and whether a snapshot fits (settle). */
#define TESSERA_MEET_PROTOCOL 14

/* From this one on a node waits for those who hold tables before DDL ends migrations (call ddl_await_holders). */
#define TESSERA_HOLDERS_PROTOCOL 14

/* The parameter of the connection (ParameterStatus) in which they do. */
#define TESSERA_TIME_PARAMETER "tessera_time"

#endif							/* TESSERA_PROTOCOL_H */
