/*
 * move_reasons.h
 *	  Why a move is asked for, as tessera.balancer_action has it. What the policy chooses has its own reasons (balancer/actions.c).
 */
#ifndef TESSERA_MOVE_REASONS_H
#define TESSERA_MOVE_REASONS_H

/* Somebody wants it: tessera.move_range(..., wait => false). */
#define TESSERA_REASON_REQUESTED "requested"

/* Rows come in at the end of the key space that a shard has just split off: the next ones are to go to another shard. */
#define TESSERA_REASON_TOP "top"

#endif							/* TESSERA_MOVE_REASONS_H */
