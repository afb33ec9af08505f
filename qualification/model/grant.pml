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

/* --- the engine: one operation, from hl_restore_start() to the record's next generation --- */

inline tell_manager(x) {
#ifdef BUG_NO_MAINTENANCE
  if :: mark[x] = true :: skip fi /* the wake-up is lost */
#else
  skip
#endif
}

/* Operations start in order, the first in record 0: other orders differ in names only. */
#define MAY_RESERVE(n) (session[s].state != NOT_YET && started[s] == turn && rec[n].state == FREE)
#define RESERVE(n) x = n; g = rec[n].gen; rec[n].state = RESERVED; started[s] = turn + 1

inline free_record(x) { /* what is left in the fields says nothing to the next generation */
  rec[x].gen = g + 1; rec[x].state = FREE;
  rec[x].submitted = 0; rec[x].cancel = 0; rec[x].consumed = 0; rec[x].part = 0; extent[x] = 0
}

inline take_back(x) {
  assert(inflight[x] == 0 || I3_page_is_kept);
  assert(!OWNED(x) || I5_owner_exists);
  free_record(x)
}

inline settle(x) { /* the pages are the connector's again */
  assert(inflight[x] == 0 || I3_page_is_kept); extent[x] = 0
}

proctype restore(byte s, turn) {
  byte x, g, parts;
  bool failed;
#ifdef FINISH
  bool patient;
#else
#define patient false
#endif
  {
    skip;
end_start:
    if
    :: atomic { MAY_RESERVE(s * RECORDS) -> RESERVE(s * RECORDS) }
#if RECORDS == 2
    :: atomic { turn > 0 && MAY_RESERVE(s * RECORDS + 1) -> RESERVE(s * RECORDS + 1) }
#endif
    fi;
    atomic {
#ifdef FINISH
      if :: patient = true :: skip fi;
#endif
      extent[x] = g; rec[x].submitted = g; tell_manager(x)
    };
look:
    if
    :: atomic { AT(x, RESERVED, g) && (!patient || lost[s] || !manager_up) ->
#ifndef BUG_TAKE_BACK_BLIND
         take_back(x); goto done
#endif
       };
#ifdef BUG_TAKE_BACK_BLIND
       atomic { take_back(x); goto done }
#endif
    :: atomic { rec[x].state == PREPARING && rec[x].cancel != g && !patient };
       atomic { rec[x].cancel = g; tell_manager(x) };
       goto look
    :: atomic { rec[x].state == GRANTED ->
#ifdef BUG_SURRENDER
         if :: !manager_up -> assert(!NEEDS_OWNER(x) || I8_manager_death_is_no_result) :: else fi;
#endif
         extent[x] = 0
       };
       atomic {
         if
         :: AT(x, GRANTED, g) ->
            rec[x].state = ACTIVE;
            assert(OWNED(x) || I5_owner_exists);
            assert(own[x].credits == 1 || I1_source_is_not_reused);
            assert((own[x].gen == g && rec[x].part == parts) || I4_stale_changes_nothing)
         :: else -> goto look
         fi
       }
    :: atomic { !manager_up && rec[x].state == PREPARING -> HONEST(parts == 0); settle(x); goto done }
    :: atomic { !manager_up && rec[x].state == PART_DRAINED -> HONEST(parts > 0); settle(x); goto done }
    :: atomic { (rec[x].state == REVOKED || rec[x].state == REJECTED || rec[x].state == REAPED) -> settle(x); goto retire }
    fi;
    atomic { /* out of the bank, whose space the Manager may then use again; then to the device, or refused */
      assert(bank_content[s] == x + 1 || bank_is_not_overwritten);
      parts++; rec[x].consumed = parts; tell_manager(x);
      if
      :: inflight[x]++
      :: inflight[x]++; failed = true
      :: failed = true
      fi
    };
#ifdef BUG_PAGES_EARLY
    if :: inflight[x] == 0 :: atomic { !manager_up -> settle(x); goto done } fi;
#else
#ifndef BUG_DRAINED_EARLY
    inflight[x] == 0; /* hl_operation_poll(), hl_operation_drain() */
#endif
#endif
    atomic {
      assert(inflight[x] == 0 || I9_drained_is_true);
      HONEST(AT(x, ACTIVE, g));
      if
      :: !failed && parts < PARTS -> rec[x].state = PART_DRAINED; tell_manager(x); goto look
      :: else -> rec[x].state = DRAINED; tell_manager(x); settle(x)
      fi
    };
retire:
    if
    :: atomic { rec[x].state == REAPED -> assert(!OWNED(x) || I5_owner_exists); free_record(x) }
    :: !manager_up
    fi;
done:
    atomic { x = 0; g = 0; parts = 0; failed = false }
  } unless { atomic { !up[s] -> x = 0; g = 0; parts = 0; failed = false } }
}

/* --- the device: finishes what it accepted, whoever has died meanwhile --- */

#define FINISHES(x) \
  atomic { inflight[x] > 0 -> assert((OWNED(x) && own[x].credits == 1) || I1_source_is_not_reused); inflight[x]-- }

proctype device() {
end_device:
  do
  :: FINISHES(0)
#if ALL > 1
  :: FINISHES(1)
#endif
#if ALL > 2
  :: FINISHES(2)
  :: FINISHES(3)
#endif
  od
}

/* --- the Manager: one thread under one lock --- */

/* What a look at the record would act on; what an honest engine never leaves behind counts too. */
#define ASKS(x) \
  (SERVED(S(x)) && \
   ((own[x].phase == NO_OWNER && WANTS(x)) || (own[x].phase == GRANTED_PART && MOVED(x)) || \
    ((own[x].phase == PREPARED || own[x].phase == BETWEEN_PARTS) && REFUSED(x, own[x].gen))))
#ifdef BUG_NO_MAINTENANCE
#define WANTS(x) (mark[x] && rec[x].state == RESERVED && rec[x].submitted == rec[x].gen)
#define MOVED(x) (mark[x] && CHANGED(x))
#else
#define WANTS(x) \
  ((rec[x].state == RESERVED && rec[x].submitted == rec[x].gen) || \
   (!IS_LOST(S(x)) && rec[x].state != RESERVED && rec[x].state != FREE && rec[x].state != REAPED))
#define MOVED(x) CHANGED(x)
#endif
#define CHANGED(x) \
  ((rec[x].state == GRANTED && REFUSED(x, own[x].gen)) || \
   (rec[x].state == ACTIVE && session[S(x)].bank == x + 1 && rec[x].consumed == own[x].part + 1) || \
   (rec[x].state != GRANTED && rec[x].state != ACTIVE))

inline give_bank(x) {
  if :: session[S(x)].bank == x + 1 -> session[S(x)].bank = 0 :: else fi
}

inline withdraw(x) {
  if :: waiting[S(x)]??[eval(x)] -> waiting[S(x)]??eval(x) :: else fi
}

inline release(x) { /* manager_operation_release(): before it, what must hold of who is released */
  assert(inflight[x] == 0 || I1_source_is_not_reused);
#ifndef BUG_RELEASE_ON_PART
  assert(own[x].credits == 1 || I2_credits_are_conserved);
#endif
  withdraw(x);
  give_bank(x);
#ifndef BUG_CREDIT_KEPT /* as a path that ends an operation without giving back what it took */
  own[x].credits = 0;
#endif
  own[x].phase = NO_OWNER; own[x].gen = 0; own[x].part = 0
}

/* Nothing but an operator releases what is claimed and has not drained. */
#define NOT_CLAIMED(x) assert((rec[x].state != ACTIVE && own[x].phase != QUARANTINED) || I7_quarantine_is_kept)

inline grant(x, from) { /* the bank has room */
  assert(session[s].bank == 0 || bank_is_not_overwritten);
  HONEST(AT(x, from, g));
  session[s].bank = x + 1; bank_content[s] = x + 1;
  rec[x].part = own[x].part; rec[x].state = GRANTED;
#ifdef BUG_BANK_EARLY
  session[s].bank = 0;
#endif
#ifndef BUG_OWNER_AFTER_GRANT
  own[x].phase = GRANTED_PART
#endif
}

inline end_session(n) {
  assert((EACH(n, NO_CREDITS) && session[n].bank == 0 && len(waiting[n]) == 0) || I2_credits_are_conserved);
  assert(!up[n] || EACH(n, NOT_GRANTED) || I5_owner_exists);
  occupant[PLACE(n)] = 0; session[n].state = GONE; session[n].ended = false; must_end[n] = false;
  bank_content[n] = 0;
  if
  :: !up[n] -> started[n] = OPERATIONS; forget_record((n) * RECORDS);
#if RECORDS == 2
     forget_record((n) * RECORDS + 1)
#endif
  :: else
  fi
}

/* What the granted part of record x, whose word was w, leads to; `revoke` and `close` are steps of their own. */
inline look_granted(x) {
  if
  :: w == GRANTED -> goto revoke
  :: w == ACTIVE ->
#ifdef BUG_TIMEOUT_RELEASE
     from = ACTIVE; goto close;
#endif
     HONEST(rec[x].consumed == own[x].part + 1);
     give_bank(x); goto looked
  :: w == PART_DRAINED && REFUSED(x, g) -> HONEST(own[x].part + 1 < PARTS); rec[x].state = REVOKED; from = REVOKED; goto close
  :: w == PART_DRAINED && !REFUSED(x, g) -> /* next_part() */
     HONEST(own[x].part + 1 < PARTS);
     give_bank(x); own[x].part++; own[x].phase = BETWEEN_PARTS;
#ifdef BUG_RELEASE_ON_PART
     own[x].credits = 0;
#endif
     if
     :: len(waiting[s]) > 0 || session[s].bank != 0 -> waiting[s]!x
     :: else -> grant(x, PART_DRAINED)
     fi;
     goto looked
  :: w == DRAINED -> from = DRAINED; goto close
  :: else -> HONEST(false)
  fi
}

inline look_waiting(x) { /* refused before it was granted, or between two parts */
  if
  :: own[x].phase == PREPARED ->
     HONEST(AT(x, PREPARING, g)); release(x); rec[x].state = REJECTED; from = REJECTED; goto close
  :: else -> HONEST(AT(x, PART_DRAINED, g)); rec[x].state = REVOKED; from = REVOKED; goto close
  fi
}

#define LOOK(n) atomic { ASKS(n) -> \
  x = n; s = S(n); w = rec[n].state; g = rec[n].gen; unmark(n); \
  if \
  :: own[n].phase == NO_OWNER -> HONEST(w == RESERVED); goto claim \
  :: own[n].phase == GRANTED_PART -> look_granted(n) \
  :: else -> look_waiting(n) \
  fi }
inline unmark(x) {
#ifdef BUG_NO_MAINTENANCE
  mark[x] = false
#else
  skip
#endif
}
inline forget_session(n) {
  session[n].ended = false; session[n].bank = 0; must_end[n] = false;
  if :: SERVED(n) -> session[n].state = LIVE :: else fi;
  do :: waiting[n]?_ :: empty(waiting[n]) -> break od
}
inline forget_record(n) { /* nobody maps it any more */
  rec[n].gen = 1; rec[n].state = FREE; extent[n] = 0;
  rec[n].submitted = 0; rec[n].cancel = 0; rec[n].consumed = 0; rec[n].part = 0
}
#define OPERATOR(n) /* acts on evidence of his own that the device has let go */ \
  atomic { own[n].phase == QUARANTINED && inflight[n] == 0 -> s = S(n); release(n); goto looked }
#define OPEN(n, before) atomic { session[n].state == NOT_YET && occupant[PLACE(n)] == 0 && (before) -> \
  occupant[PLACE(n)] = n + 1; session[n].state = LIVE }
#define HANGUP(n) atomic { lost[n] && session[n].state == LIVE -> session[n].state = DETACHED; s = n; goto looked }
#define LEASES_GONE(n) atomic { session[n].state == DETACHED && !session[n].ended && EACH(n, NOT_OWNED) -> end_session(n) }
#define END(n) atomic { must_end[n] && !session[n].ended && (session[n].state == LIVE || session[n].state == DETACHED) -> \
  session[n].ended = true; session[n].state = DETACHED; lost[n] = true; s = n; losing = true; goto lose }
#define DEATH(n) \
  atomic { batch == 0 && !up[n] && (session[n].state == LIVE || session[n].state == DETACHED) -> batch = n + 1 }

proctype manager() {
  byte x, s, g, r, batch;
  mtype:state w, from;
  bool losing;
  {
    skip;
end_serve:
    if
    :: LOOK(0)
    :: OPERATOR(0)
    :: HANGUP(0)
    :: LEASES_GONE(0)
    :: END(0)
    :: DEATH(0)
    :: OPEN(0, true)
#if ALL > 1
    :: LOOK(1)
    :: OPERATOR(1)
#endif
#if ALL > 2
    :: LOOK(2)
    :: OPERATOR(2)
    :: LOOK(3)
    :: OPERATOR(3)
#endif
#if SESSIONS > 1
    :: HANGUP(1)
    :: LEASES_GONE(1)
    :: END(1)
    :: DEATH(1)
    :: OPEN(1, session[0].state != NOT_YET)
#endif
    :: atomic { batch != 0 -> /* an event that epoll_wait() returned; others of its batch may have come first */
#ifdef BUG_NO_SERIAL
         if
         :: occupant[PLACE(batch - 1)] != 0 -> s = occupant[PLACE(batch - 1)] - 1
#else
         if
         :: occupant[PLACE(batch - 1)] == batch -> s = batch - 1
#endif
         :: else -> batch = 0; goto end_serve
         fi;
         batch = 0;
         assert(!up[s] || I4_stale_changes_nothing);
         session[s].state = UNRESOLVED; losing = true; goto lose
       }
    fi;
    goto end_serve;

claim: /* RESERVED of generation g was seen */
    atomic {
#ifdef BUG_NO_GENERATION
      g = rec[x].gen;
#endif
      if
      :: AT(x, RESERVED, g) ->
         assert((rec[x].submitted == g && extent[x] == g) || I4_stale_changes_nothing);
         rec[x].state = PREPARING;
         if :: REFUSED(x, g) -> goto reject :: else fi
      :: else -> goto looked
      fi
    };
    atomic {
      if
      :: goto reject /* invalid, or a budget is used up */
      :: assert(extent[x] == g || I4_stale_changes_nothing); /* the descriptor that is decoded */
         assert((own[x].credits == 0 && !OWNED(x)) || I2_credits_are_conserved);
         own[x].credits = 1; own[x].gen = g;
#ifndef BUG_OWNER_AFTER_GRANT
         own[x].phase = PREPARED;
#endif
         if
         :: REFUSED(x, g) -> release(x); goto reject
         :: else
         fi;
         if
         :: len(waiting[s]) > 0 || session[s].bank != 0 -> waiting[s]!x
         :: else -> grant(x, PREPARING)
         fi
      fi
    };
#ifdef BUG_OWNER_AFTER_GRANT
    own[x].phase = GRANTED_PART;
#endif
    goto looked;

reject:
    atomic { HONEST(AT(x, PREPARING, g)); rec[x].state = REJECTED; from = REJECTED };
    goto close;

revoke: /* GRANTED was seen, and it is refused */
    atomic {
#ifdef BUG_BLIND_REVOKE
      if
      :: true ->
#else
      if
      :: AT(x, GRANTED, g) ->
#endif
         rec[x].state = REVOKED; from = REVOKED
      :: else -> /* claimed meanwhile */
         w = rec[x].state;
         if
         :: losing || w == ACTIVE -> goto claimed
         :: else -> look_granted(x)
         fi
      fi
    };

close: /* the record has its outcome; release and REAPED are one step, as in between only REAPED can be seen */
    atomic {
      if
      :: OWNED(x) ->
#ifdef BUG_REAP_BEFORE_RELEASE
         rec[x].state = REAPED;
         assert(!OWNED(x) || I5_owner_exists);
#endif
         NOT_CLAIMED(x); release(x)
      :: else
      fi;
      HONEST(AT(x, from, g));
      rec[x].state = REAPED
    };

looked:
    atomic {
      if
      :: losing -> r++; goto lose
      :: !losing && !IS_LOST(s) && len(waiting[s]) > 0 && session[s].bank == 0 ->
         waiting[s]?x; g = own[x].gen;
         if
         :: own[x].phase == PREPARED -> grant(x, PREPARING)
         :: else -> grant(x, PART_DRAINED)
         fi
      :: else
      fi;
      /* manager_session_settle() */
      if
      :: (session[s].state == UNRESOLVED || (session[s].state == DETACHED && session[s].ended)) && EACH(s, NOT_OWNED) ->
         end_session(s)
      :: else
      fi;
      x = 0; s = 0; g = 0; w = FREE; from = FREE
    };
    goto end_serve;

lose: /* manager_grants_lose(): record r of session s */
    atomic {
      if
      :: r == RECORDS -> losing = false; r = 0; goto looked
      :: else -> x = s * RECORDS + r; w = rec[x].state; g = rec[x].gen
      fi;
      if
      :: own[x].phase == NO_OWNER && w == RESERVED && rec[x].submitted == g -> goto claim
      :: own[x].phase == NO_OWNER && !(w == RESERVED && rec[x].submitted == g) -> goto looked
      :: own[x].phase == QUARANTINED -> goto looked
      :: own[x].phase == GRANTED_PART -> goto revoke
      :: else -> look_waiting(x)
      fi
    };

claimed: /* lose_granted(): the claim was first, or the record has gone on */
    atomic {
      if
      :: w == ACTIVE && losing && session[s].state == UNRESOLVED ->
#ifdef BUG_DEATH_IS_FENCE
         from = ACTIVE; goto close
#else
#ifndef BUG_DEATH_FORGOTTEN
         withdraw(x); own[x].phase = QUARANTINED;
#endif
         goto looked
#endif
      :: w == ACTIVE && !(losing && session[s].state == UNRESOLVED) -> goto looked
      :: w == PART_DRAINED -> HONEST(own[x].part + 1 < PARTS); rec[x].state = REVOKED; from = REVOKED; goto close
      :: w == DRAINED -> from = DRAINED; goto close
      :: else -> HONEST(false)
      fi
    }
  } unless { atomic { !manager_up -> /* what only the Manager would have read is forgotten; its owners stay (I8) */
    x = 0; s = 0; g = 0; r = 0; batch = 0; w = FREE; from = FREE; losing = false;
    forget_session(0);
#if SESSIONS > 1
    forget_session(1)
#endif
  } }
}

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
