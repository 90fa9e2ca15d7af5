/*
 * capture_private.h
 *	  What capture.c (decoding) and capture_start.c (slot, start point, snapshot, end) share.
 */
#ifndef TESSERA_TRANSFER_CAPTURE_PRIVATE_H
#define TESSERA_TRANSFER_CAPTURE_PRIVATE_H

#include "postgres.h"
#include "access/xlogreader.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "replication/logical.h"
#include "storage/buffile.h"

#include "transfer/row_codec.h"
#include "transfer/transfer.h"

/* Where a table is among those that move. */
typedef struct CapturedTable
{
	Oid			relid;
	int			table;
} CapturedTable;

struct TesseraCapture
{
	MemoryContext mcxt;			/* below TopMemoryContext: outlives transactions */
	TesseraMovingRanges *moving;
	CapturedTable *tables;		/* by relid, ascending; as many as tables move */
	NameData	slot;
	LogicalDecodingContext *ctx;	/* NULL: decoding has not begun */
	XLogRecPtr	position;		/* everything committed before has been handed out */

	/* while the start point is looked for */
	TimestampTz deadline;
	void		(*waiting) (const char *what, void *arg);
	void	   *waiting_arg;
	bool		starting;

	/* verification by content: keys of changes are noted; NULL: not wanted */
	TesseraVerify *verify;
	TransactionId xid;			/* of the change being captured */

	/* output of the callbacks */
	TesseraRowWriter **writers; /* by table; NULL: not met yet */
	bool	   *described;		/* by table: in the payload being written */
	StringInfoData out;			/* payload being written */
	int64		out_changes;
	Size		item_bytes;
	MemoryContext change_context;	/* emptied for each change */
	bool		settings_pushed;
	int			settings_level;

	/* items not yet handed out, oldest first: those in memory, then those in the file */
	MemoryContext items_context;
	MemoryContext item_context; /* emptied for each item */
	List	   *items;
	int			items_read;
	Size		memory_bytes;
	BufFile    *spool;
	int64		spool_written;
	int64		spool_read;
};

extern TesseraCapture *tessera_current_capture;

/* ERROR 55000 unless the capture's slot is still this process's. */
extern void tessera_capture_check(TesseraCapture *capture);

/* The context of a new slot (not yet consistent), or of one that has a start point; in the capture's context. */
extern LogicalDecodingContext *tessera_capture_decoding_context(TesseraCapture *capture, bool create);

#endif							/* TESSERA_TRANSFER_CAPTURE_PRIVATE_H */
