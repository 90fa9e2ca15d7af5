/*
 * unreadable.c
 *	  Table groups whose chunks this shard cannot read; see unreadable.h.
 *
 * The rows are a table of this node alone, written when something changes. A crash leaves them; the first round of the next process puts them right.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "balance/unreadable.h"
#include "common/spi_row.h"
#include "common/text.h"

void
tessera_note_unreadable(List *groups)
{
	static bool rows = true;	/* there may be some, of this process or of the one before it */
	Datum	   *ids = palloc(sizeof(Datum) * Max(list_length(groups), 1));
	int			n = 0;
	ListCell   *cell;
	TesseraSpi	spi;
	Datum		all;

	if (groups == NIL && !rows)
		return;
	foreach(cell, groups)
		ids[n++] = UUIDPGetDatum(&((TesseraUnreadable *) lfirst(cell))->group_id);
	all = PointerGetDatum(construct_array(ids, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	tessera_spi_begin(&spi);
	tessera_spi_run_saved("DELETE FROM tessera.unreadable_group WHERE group_id <> ALL ($1)", SPI_OK_DELETE, 1, (Oid[]) {UUIDARRAYOID}, &all, NULL);
	foreach(cell, groups)
	{
		const TesseraUnreadable *group = lfirst(cell);
		Datum		values[] = {UUIDPGetDatum(&group->group_id), CStringGetTextDatum(group->reason)};
		char	   *table;

		if (tessera_spi_run_saved("INSERT INTO tessera.unreadable_group AS u (group_id, error) VALUES ($1, $2) ON CONFLICT (group_id)"
								  " DO UPDATE SET error = excluded.error, since = excluded.since WHERE u.error <> excluded.error"
								  " RETURNING (SELECT min(t.relid::regclass::text) FROM tessera.cluster_table AS t WHERE t.group_id = u.group_id)",
								  SPI_OK_INSERT_RETURNING, 2, (Oid[]) {UUIDOID, TEXTOID}, values, NULL) == 0)
			continue;
		table = spi_row_text(0, 1);
		ereport(LOG,
				(errmsg("the splitter leaves out the table group of %s, whose chunks cannot be read: %s",
						table != NULL ? table : tessera_uuid_text(&group->group_id), group->reason)));
	}
	tessera_spi_end(&spi);
	rows = groups != NIL;
}
