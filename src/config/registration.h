/*
 * registration.h
 *	  What the registrations of migrations share: of a range (register_move.c) and of a schema (register_schema_move.c). Config node.
 */
#ifndef TESSERA_CONFIG_REGISTRATION_H
#define TESSERA_CONFIG_REGISTRATION_H

#include "postgres.h"
#include "utils/uuid.h"

#include "config/chunks.h"
#include "routing/routing.h"

/* From here to the end of the transaction a lock is waited for some seconds at most. */
extern void tessera_limit_lock_waits(void);

/*
 * tessera_group_lock, not for ever: DDL on a table of the group holds its row shared to the end of its transaction, and another move while it is
 * being decided. ERROR 55006.
 */
extern void tessera_group_lock_soon(const pg_uuid_t *group_id, TesseraGroupRow *row);

/*
 * Takes the locks by which the migrations of a shard are counted, to the end of the transaction; after the groups' locks. ERROR 55006 if one of the
 * shards takes part in as many as it may. Between tessera_spi_begin and _end, as the rest.
 */
extern void tessera_take_room(const TesseraRouting *routing, int32 donor, int32 recipient);

/* This session stands behind a migration that another one has registered, as long as its donor has not reported. */
extern void tessera_join_migration(const pg_uuid_t *id);

/* What donor and recipient are told of a registered migration; in SPI's memory. */
extern char *tessera_registered_request(const pg_uuid_t *id);

#endif							/* TESSERA_CONFIG_REGISTRATION_H */
