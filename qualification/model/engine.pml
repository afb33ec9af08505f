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
    :: atomic { (rec[x].state == REVOKED || rec[x].state == REJECTED || rec[x].state == REAPED) ->
         settle(x); goto retire
       }
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
