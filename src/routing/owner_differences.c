/*
 * owner_differences.c
 *	  Compares the owners of two table groups, by a routing image; see owner_differences.h.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "routing/owner_differences.h"

List *
tessera_ownership_differences(const TesseraRouting *routing, const TesseraGroup *first, const TesseraGroup *second)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, first);
	int			nfirst = tessera_routing_nchunks(routing, first);
	int			nsecond = tessera_routing_nchunks(routing, second);
	List	   *differences = NIL;
	TesseraDifference *last = NULL;
	int			i = 0,
				j = 0;

	while (i < nfirst && j < nsecond)
	{
		TesseraChunk a,
					b;
		int			order;

		CHECK_FOR_INTERRUPTS();
		tessera_routing_chunk(routing, first, i, &a);
		tessera_routing_chunk(routing, second, j, &b);
		order = tessera_key_compare(ks, &a.max, &b.max);
		if (a.node_id == b.node_id)
			last = NULL;
		else
		{
			if (last == NULL || last->from != a.node_id || last->to != b.node_id)
			{
				last = palloc(sizeof(TesseraDifference));
				last->min = tessera_key_to_bound(ks, tessera_key_compare(ks, &a.min, &b.min) > 0 ? &a.min : &b.min);
				last->from = a.node_id;
				last->to = b.node_id;
				differences = lappend(differences, last);
			}
			last->max = tessera_key_to_bound(ks, order < 0 ? &a.max : &b.max);
		}
		i += order <= 0;
		j += order >= 0;
	}
	return differences;
}
