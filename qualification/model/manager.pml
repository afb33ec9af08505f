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
  :: w == PART_DRAINED && REFUSED(x, g) ->
     HONEST(own[x].part + 1 < PARTS); rec[x].state = REVOKED; from = REVOKED; goto close
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
