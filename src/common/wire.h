/*
 * wire.h
 *	  Values between nodes: send, receive and output functions as they must be called for other nodes, whatever the session's client has set.
 */
#ifndef TESSERA_WIRE_H
#define TESSERA_WIRE_H

#include "postgres.h"
#include "fmgr.h"
#include "lib/stringinfo.h"

/* True if the client's encoding is the database's. Only then does the server's own COPY read binary data of another node unchanged. */
extern bool tessera_wire_same_encoding(void);

/* Binary form in the encoding of the database, which links between nodes speak; palloc'd. ERROR of the send function. */
extern bytea *tessera_wire_send(FmgrInfo *function, Datum value);

/* The reverse. ERROR of the receive function. Both are only for types whose functions run no users' code. */
extern Datum tessera_wire_receive(FmgrInfo *function, StringInfo buffer, Oid ioparam, int32 typmod);

/*
 * Text form under fixed settings: TesseraFixedSettings, or 0 if it depends on none; palloc'd. An XML document is what is stored, with its
 * declaration. ERROR of the output function.
 */
extern char *tessera_wire_fixed_output(FmgrInfo *function, Datum value, int settings);

/*
 * Text form that reads the same under the session's own settings, whatever they are, and loses no digit. ERROR 0A000 if array_nulls is off and NULL
 * would be read as a string.
 */
extern char *tessera_wire_output(FmgrInfo *function, Datum value);

/* Reads what another node has written as text under these settings, whatever this session's say. ERROR of the input function. */
extern Datum tessera_wire_input(FmgrInfo *function, char *text, Oid ioparam, int32 typmod, int settings);

#endif							/* TESSERA_WIRE_H */
