# SPDX-License-Identifier: GPL-3.0-or-later
# Assigns each test to builds, as additional ctest labels. For each label there is a target, tests_
# and the label, that builds the tests and the programs that they run:
#   release    measures times, uses vector kernels, or is too slow without -O3: fits, scripts
#   release_full   the same build; long tests that only `scripts/test --full` runs
#   asan       AddressSanitizer and UndefinedBehaviourSanitizer: nearly all tests
#   tsan       ThreadSanitizer: tests of the engine
#   asan_full  the same two builds; long tests that only `scripts/test --full` runs
#   tsan_full
# In the release build, --full runs all other tests, too. A test that no list names runs under ASan.

# Scripts that run the program many times: under ASan they take three to five times as long. There
# the readers' code runs in the fuzz targets' corpora, the rest in the unit tests.
set(SCRIPTS golden_bad_input golden_certificate golden_cli_help golden_completion golden_config
            golden_deterministic golden_escapes golden_estimate golden_fit golden_import golden_jobs golden_largest golden_machine_store
            golden_machines golden_others golden_overlap golden_price golden_questions golden_ranks golden_readme golden_report
            golden_report_browser golden_screen golden_search
            golden_set golden_sweep golden_timeline golden_trace_store unit_readme_check)
# Programs and scripts of the engine run in all three builds unless a list below says otherwise.
# unit_hardening and unit_layers look at the program, which asan by default does not build, and at
# flags that only the release build has. Of unit_advice, unit_json and
# unit_policy the sanitizers have a part (is_sanitized).
set(NEEDS_RELEASE ${SCRIPTS} golden_endless golden_hand_grid golden_installed golden_megatron golden_parts
                  golden_published golden_ranking property_monotone unit_advice unit_fit
                  unit_hardening unit_import_deepspeed unit_json unit_layers unit_overlap_search unit_policy
                  unit_profile_fit unit_profile_nodes unit_ratio unit_replay_inputs unit_search)
if(HOCKET_REFEREE)
  list(APPEND NEEDS_RELEASE golden_simgrid)
endif()
# What these test is tested in part by others: fits by unit_profile_nodes, calibration by
# engine_calibrate, orders and overlaps by engine_training and engine_abi.
set(LONG_IN_RELEASE golden_report_browser engine_calibrate_cli engine_training_orders engine_validate_cli golden_fit
                    golden_overlap unit_fit unit_profile_fit)
# These look for wrong use of memory, often after a failure, which the sanitizers detect.
set(NOT_IN_RELEASE engine_checkpoint engine_checkpoint_kills engine_checkpoint_training
                   engine_discard engine_faults engine_stand engine_training_faults)
# Their code runs under ASan in engine_stand, engine_calibrate (with --full its fits, too),
# engine_validate, engine_training and engine_executor.
set(LONG_IN_ASAN ${SCRIPTS} engine_abi engine_calibrate_cli engine_exact engine_formats
                 engine_formats_bias engine_run engine_training_orders engine_validate_cli golden_endless
                 golden_hand_grid golden_megatron golden_published property_monotone unit_fit
                 unit_hardening unit_import_deepspeed unit_layers unit_overlap_search unit_profile_fit
                 unit_profile_nodes unit_ratio unit_replay_inputs unit_search)
# ThreadSanitizer's runtime must be linked into the program, not into a library that another program
# loads. It does not know the barriers of gcc's OpenMP, which fits use.
set(NOT_IN_TSAN engine_ctypes engine_abi engine_calibrate_cli engine_host_memory
                engine_validate_cli)
# engine_accumulate, engine_executor and engine_training use the same threads.
set(LONG_IN_TSAN engine_adamw engine_adamw_torch engine_calibrate engine_checkpoint
                 engine_checkpoint_kills engine_checkpoint_training engine_checksum
                 engine_clip_blocks engine_exact engine_formats engine_formats_bias engine_recording engine_run engine_segments
                 engine_squares engine_stand engine_stand_clock engine_training_faults engine_training_orders
                 engine_validate)

# CPU seconds in the build where the test takes longest, 2026-11-23; tests that are not listed take
# less than 4. ctest starts the longest first, so that no processor waits for one at the end.
set(COSTS engine_training_orders 60 golden_questions 43 unit_profile_fit 30 engine_calibrate_cli 20 engine_calibrate 10 unit_fit 13 golden_bad_input 12 engine_exact 10 engine_training 10
          unit_profile_nodes 10 engine_faults 9 engine_validate_cli 9
          engine_training_faults 8 golden_fit 8 golden_cli_help 8 engine_abi 8 engine_segments 8
          engine_checkpoint 7 engine_adamw 6 engine_formats 6 unit_replay_inputs 6 engine_stand 5
          engine_host_memory 5 engine_validate 5 golden_import 5 engine_run 7 unit_import_deepspeed 4)

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
      if(short IN_LIST LONG_IN_RELEASE)
        list(APPEND labels release_full)
      else()
        list(APPEND labels release)
      endif()
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

foreach(label release asan tsan release_full asan_full tsan_full)
  add_custom_target(tests_${label})
  if(NOT label MATCHES "^[at]san$") # no script that runs the program
    add_dependencies(tests_${label} hocket)
  endif()
  if(NOT label STREQUAL "tsan") # there the library is linked into the tests
    add_dependencies(tests_${label} libhocket)
  endif()
endforeach()
if(TARGET hocket_faults)
  add_dependencies(tests_release hocket_faults)
endif()
if(TARGET hocket_help) # test_golden_installed installs it
  add_dependencies(tests_release hocket_help)
endif()
get_property(ALL_TESTS DIRECTORY PROPERTY TESTS)
add_labels(${ALL_TESTS})
foreach(list NEEDS_RELEASE LONG_IN_RELEASE NOT_IN_RELEASE LONG_IN_ASAN NOT_IN_TSAN LONG_IN_TSAN)
  foreach(short ${${list}})
    if(NOT test_${short} IN_LIST ALL_TESTS)
      message(FATAL_ERROR "tests/where.cmake: ${list} names ${short}, but there is no test_${short}")
    endif()
  endforeach()
endforeach()

# Its long pieces and many steps find what tests of the formats do not: without a GPU, too.
if(TARGET test_gpu_formats)
  add_test(NAME test_gpu_formats_on_host COMMAND test_gpu_formats --backend host)
  set_tests_properties(test_gpu_formats_on_host PROPERTIES LABELS release_full)
endif()
