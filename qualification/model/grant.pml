/* The grant protocol as the sources have it: what an engine, its Manager, the device and their deaths can do to
 * the shared record in any order. docs/model.md says what is left out, and how a counterexample is replayed.
 *
 * Which functions each transition stands for (grant_model_test.sh fails when one of them is gone):
 *
 *   reserve, announce    engine/restore.c: reserve() announce()
 *   the worker's look    engine/operation.c: engine_operation_look() look_at_waiting()
 *   take back, cancel    engine/operation.c: look_at_waiting() engine/handle.c: hl_restore_cancel()
 *   claim, take, submit  engine/operation.c: claim() take_part() fail_claimed()
 *   part, drain          engine/operation.c: look_at_copies() conclude()
 *   settle               engine/operation.c: settle() settle_by_manager() settle_cut_short()
 *   retire               engine/retire.c: retire_record() give_record() see_death() see_hangup()
 *   every word           core/grant/record.c: hl_grant_move() hl_grant_load()
 *   look, maintenance    manager/grants.c: manager_grants_look() manager_grants_sweep() look_unowned() look_owned()
 *                        manager/dispatch.c: look_at_records() maintain()
 *   Manager's claim      manager/grants.c: claim() refused() manager/prepare.c: manager_prepare()
 *   owner, credits       manager/operation.c: manager_operation_install() manager_operation_release()
 *   grant, defer         manager/parts.c: grant() defer() manager_part_offer() manager_part_offer_first()
 *   consumed             manager/grants.c: note_consumed() manager/parts.c: manager_part_consumed()
 *   next part            manager/grants.c: next_part() end_between_parts()
 *   reject, revoke       manager/grants.c: end_rejected() reject() end_revoked()
 *   reap                 manager/grants.c: end_drained() release_and_reap() reap()
 *   session lost         manager/grants.c: manager_grants_lose() lose_owned() lose_granted() lose_waiting()
 *                        manager/grants.c: lose_submitted()
 *   quarantine, operator manager/quarantine.c: manager_quarantine_add() manager_quarantine_release()
 *   sessions, places     manager/session.c: manager_session_open() free_session() manager_session_detach()
 *                        manager/session.c: manager_session_died() manager_session_settle()
 *   an event's serial    manager/dispatch.c: on_event()
 *
 * A step is what the other side can see: one load or one compare-and-swap of a word, one store of another atomic
 * field; private work is in one piece with the step that publishes it, as nobody can tell a death between the two
 * from a death before. Either side may die before each of its steps. Notifications do not occur: whoever waits for a
 * record sees it at any later time, as the Manager's maintenance, the worker's and the retirement thread's ticks do;
 * what would be missed without maintenance is the variant BUG_NO_MAINTENANCE (I6). A look that would find nothing to
 * do is no step, so that who waits for ever is a bad end.
 *
 * Bounds, set from outside: SESSIONS (lives of engines) in PLACES (of manager->sessions), RECORDS and OPERATIONS a
 * session, PARTS an operation; the plan bank has room for one part; MORTAL sessions, the first ones, whose engine may
 * die or lose its channel (0: the Manager does not die either). With FINISH, deaths and cancellations may also
 * never come, and nobody may be left waiting then; without it they stay possible to the end, which costs fewer states
 * and checks the assertions only. The assertions carry the names of the invariants that docs/protocol.md refers to.
 */
#ifndef SESSIONS
#define SESSIONS 1
#endif
#ifndef PLACES
#define PLACES SESSIONS
#endif
#ifndef RECORDS
#define RECORDS 1
#endif
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef PARTS
#define PARTS 2
#endif
#ifndef MORTAL
#define MORTAL SESSIONS
#endif
#define ALL (SESSIONS * RECORDS)

/* Never true and in no state: they put the invariant's name into the assertion that fails. */
hidden byte I1_source_is_not_reused, I2_credits_are_conserved, I3_page_is_kept, I4_stale_changes_nothing;
hidden byte I5_owner_exists, I7_quarantine_is_kept, I8_manager_death_is_no_result, I9_drained_is_true;
hidden byte honest_record_is_explained, bank_is_not_overwritten;

mtype:state = { FREE, RESERVED, PREPARING, GRANTED, ACTIVE, PART_DRAINED, DRAINED, REVOKED, REJECTED, REAPED };
mtype:phase = { NO_OWNER, PREPARED, GRANTED_PART, BETWEEN_PARTS, QUARANTINED };
mtype:session = { NOT_YET, LIVE, DETACHED, UNRESOLVED, GONE };

typedef shared_record {
  mtype:state state = FREE; /* with gen: the word */
  byte gen = 1;
  byte submitted;
  byte cancel;
  byte consumed;
  byte part; /* part_index */
};
shared_record rec[ALL];

/* The Manager's, private */
typedef private_owner {
  mtype:phase phase = NO_OWNER;
  byte gen;     /* identity.generation */
  byte part;
  byte credits; /* pins, plan bytes, permit: taken and given in one piece */
};
private_owner own[ALL];
typedef session_of {
  mtype:session state = NOT_YET;
  bool ended;
  byte bank; /* 0, or 1 + the record whose part has the space */
};
session_of session[SESSIONS];
byte occupant[PLACES];                          /* 0, or 1 + the session: its serial */
chan waiting[SESSIONS] = [RECORDS] of { byte }; /* deferred, in order */

/* The engines' and the world's */
bool up[SESSIONS] = true; /* the engine's process */
bool lost[SESSIONS];      /* its channel is gone */
bool must_end[SESSIONS];  /* it said BYE or broke the protocol, or the Manager stops */
byte started[SESSIONS];
byte bank_content[SESSIONS];
byte inflight[ALL]; /* copies that the device has accepted and not finished */
byte extent[ALL];   /* the generation whose descriptor is in descriptor memory */
bool manager_up = true;
#ifdef BUG_NO_MAINTENANCE
bool mark[ALL];
#endif

#define S(x) ((x) / RECORDS)
#define PLACE(s) ((s) * (PLACES - 1))
#define OWNED(x) (own[x].phase != NO_OWNER)
#define AT(x, s, g) (rec[x].state == s && rec[x].gen == g)
#define SERVED(s) (session[s].state == LIVE || session[s].state == DETACHED || session[s].state == UNRESOLVED)
#define IS_LOST(s) (session[s].ended || session[s].state == UNRESOLVED)
#define REFUSED(x, g) (IS_LOST(S(x)) || rec[x].cancel == g)
#define NEEDS_OWNER(x) (rec[x].state == GRANTED || rec[x].state == ACTIVE || rec[x].state == PART_DRAINED)
#if RECORDS == 1
#define EACH(s, P) (P(s))
#else
#define EACH(s, P) (P((s) * 2) && P((s) * 2 + 1))
#endif
#define NOT_OWNED(x) (!OWNED(x))
#define NO_CREDITS(x) (own[x].credits == 0)
#define NOT_GRANTED(x) (!NEEDS_OWNER(x))
#define HONEST(c) assert((c) || honest_record_is_explained)

#include "engine.pml" /* and the device */
#include "manager.pml"

/* --- what may befall them --- */

proctype fate(byte s) {
end_connect:
  session[s].state != NOT_YET;
#ifdef FINISH
  if :: lost[s] = true :: must_end[s] = true :: skip fi;
  if :: up[s] = false :: skip fi
#else
end_alive:
  do
  :: atomic { !lost[s] && !must_end[s] -> lost[s] = true }
  :: atomic { !lost[s] && !must_end[s] -> must_end[s] = true }
  :: up[s] = false; break
  od
#endif
}

#if MORTAL > 0
proctype manager_fate() {
#ifdef FINISH
  if :: manager_up = false :: skip fi
#else
end_alive:
  manager_up = false
#endif
}
#endif

init {
  atomic {
    run manager();
#ifndef BUG_DEVICE_STALLS
    run device();
#endif
#if MORTAL > 0
    run manager_fate(); run fate(0);
#endif
    run restore(0, 0);
#if OPERATIONS > 1
    run restore(0, 1);
#endif
#if SESSIONS > 1
#if MORTAL > 1
    run fate(1);
#endif
    run restore(1, 0);
#if OPERATIONS > 1
    run restore(1, 1);
#endif
#endif
  }
}

#ifdef PROGRESS
/* Under weak fairness: what is claimed drains, or the engine has died; what the Manager took is released or in
 * quarantine, or the Manager has died; what is submitted is taken up or taken back (I6). */
#define CLAIMED (rec[0].state == ACTIVE)
#define SUBMITTED (rec[0].state == RESERVED && rec[0].submitted == rec[0].gen)
#define KEPT (own[0].phase == QUARANTINED)
ltl drained { [] (CLAIMED -> <> (!CLAIMED || !up[0])) }
ltl released { [] (OWNED(0) -> <> (!OWNED(0) || KEPT || !manager_up)) }
ltl answered { [] (SUBMITTED -> <> (!SUBMITTED || !up[0])) }
#endif
