# SPDX-License-Identifier: GPL-3.0-or-later
# In which build scripts/test runs a test, as more labels, and what each build must make for it, as
# targets of the same names with tests_ before them:
#   release    needs -O3: times, vector kernels, and fits that take too long without
#   asan       AddressSanitizer and UndefinedBehaviourSanitizer: nearly all
#   tsan       ThreadSanitizer: the engine's
#   asan_full  the same builds; take long, so only scripts/test --full runs them
#   tsan_full
# In release --full runs all others, too. Which is where was chosen by what a test looks for, and by
# the CPU seconds that it takes there. A test that nothing here names runs under ASan.

# Programs and scripts of the engine run in all three builds unless they are listed. Fits need -O3,
# and the example of `hocket fit` is one. unit_hardening looks at what only that build has.
set(NEEDS_RELEASE golden_cli_help golden_fit golden_published golden_ranking golden_readme unit_fit
                  unit_hardening unit_profile_fit unit_profile_nodes)
# How memory is used after a failure is the sanitizers' to see.
set(NOT_IN_RELEASE engine_calibrate engine_faults)
# Under ASan unit_profile_nodes fits, engine_calibrate and engine_validate measure: the same ways.
set(LONG_IN_ASAN engine_abi engine_training_orders engine_calibrate_cli engine_validate_cli golden_cli_help golden_fit
                 golden_published unit_fit unit_profile_fit)
# ThreadSanitizer's runtime must be in the program itself, which is not so where the library is
# loaded by others. Nor can it see the barriers of gcc's OpenMP, with which the command line fits what
# it measured.
set(NOT_IN_TSAN engine_ctypes engine_abi engine_calibrate_cli engine_validate_cli)
# Their threads are those of engine_exact, engine_executor and engine_run.
set(LONG_IN_TSAN engine_training_orders engine_training_faults engine_checkpoint_training engine_adamw engine_adamw_torch engine_calibrate engine_checkpoint engine_checksum
                 engine_stand engine_validate)

# CPU seconds under ASan, of those that take more than a few: ctest starts them first, so that no
# processor waits for the last one.
set(COSTS engine_training 80 engine_training_orders 60 engine_training_faults 30 unit_profile_fit 100 engine_exact 60 unit_fit 50 golden_fit 40 golden_cli_help 40
          engine_faults 30 engine_calibrate_cli 30 engine_validate_cli 30 unit_profile_nodes 20
          golden_published 20 engine_calibrate 16 golden_bad_input 15 unit_policy 13
          engine_checkpoint 8 unit_import_deepspeed 7 golden_trace_store 6)

function(add_labels_to name sort)
  set_tests_properties(${name} PROPERTIES LABELS "${sort};${ARGN}")
  foreach(label ${ARGN})
    if(TARGET ${name})
      add_dependencies(tests_${label} ${name})
    endif()
  endforeach()
endfunction()

function(add_labels)
  foreach(name ${ARGN})
    string(REGEX REPLACE "^test_" "" short ${name})
    get_test_property(${name} LABELS sort)
    set(labels ${sort})
    if(sort STREQUAL "gpu")
      add_labels_to(${name} gpu release) # where there is no GPU they are skipped at once
      continue()
    endif()
    if(sort STREQUAL "faults")
      add_labels_to(${name} faults release) # faults/faults.cmake says why
      set_tests_properties(${name} PROPERTIES COST 15)
      continue()
    endif()
    if(short IN_LIST NEEDS_RELEASE OR (sort STREQUAL "engine" AND NOT short IN_LIST NOT_IN_RELEASE))
      list(APPEND labels release)
    endif()
    if(short IN_LIST LONG_IN_ASAN)
      list(APPEND labels asan_full)
    else()
      list(APPEND labels asan)
    endif()
    if(sort STREQUAL "engine" AND NOT short IN_LIST NOT_IN_TSAN)
      if(short IN_LIST LONG_IN_TSAN)
        list(APPEND labels tsan_full)
      else()
        list(APPEND labels tsan)
      endif()
    endif()
    add_labels_to(${name} ${labels})
    list(FIND COSTS ${short} at)
    if(at GREATER_EQUAL 0)
      math(EXPR at "${at} + 1")
      list(GET COSTS ${at} cost)
      set_tests_properties(${name} PROPERTIES COST ${cost})
    endif()
  endforeach()
endfunction()

foreach(label release asan tsan asan_full tsan_full)
  add_custom_target(tests_${label} DEPENDS hocket libhocket)
endforeach()
if(TARGET hocket_faults)
  add_dependencies(tests_release hocket_faults)
endif()
get_property(ALL_TESTS DIRECTORY PROPERTY TESTS)
add_labels(${ALL_TESTS})
foreach(list NEEDS_RELEASE NOT_IN_RELEASE LONG_IN_ASAN NOT_IN_TSAN LONG_IN_TSAN)
  foreach(short ${${list}})
    if(NOT test_${short} IN_LIST ALL_TESTS)
      message(FATAL_ERROR "tests/where.cmake: ${list} names ${short}, but there is no test_${short}")
    endif()
  endforeach()
endforeach()
