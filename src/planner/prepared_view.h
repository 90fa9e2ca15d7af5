/*
 * prepared_view.h
 *	  Clients that read pg_prepared_xacts get the cluster's prepared transactions.
 */
#ifndef TESSERA_PREPARED_VIEW_H
#define TESSERA_PREPARED_VIEW_H

/* From _PG_init: the hook behind parse analysis. */
extern void tessera_prepared_view_init(void);

#endif							/* TESSERA_PREPARED_VIEW_H */
