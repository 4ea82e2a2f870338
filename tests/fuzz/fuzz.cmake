# SPDX-License-Identifier: GPL-3.0-or-later
# Fuzz targets, one per reader: tests/fuzz/fuzz_READER.c and tests/fuzz/corpus/READER.
#   test_fuzz_READER  any compiler: runs the corpus once; one of the tests
#   fuzz_READER       clang with HOCKET_FUZZ (preset fuzz): libFuzzer; scripts/fuzz runs them
option(HOCKET_FUZZ "Build the libFuzzer targets" OFF)
set(FUZZ_READERS model machine plan runs config deepspeed checkpoint timeline store extremes)
add_library(hocket_fuzz STATIC fuzz/fuzz.c fuzz/simulate.c)
target_link_libraries(hocket_fuzz PUBLIC hocket_calib hocket_engine hocket_sim hocket_traces
                                         PkgConfig::XXHASH)
foreach(reader ${FUZZ_READERS})
  set(name test_fuzz_${reader})
  add_executable(${name} fuzz/fuzz_${reader}.c fuzz/replay.c)
  target_link_libraries(${name} PRIVATE hocket_fuzz)
  add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${reader})
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 600 ENVIRONMENT "${TEST_ENVIRONMENT}")
  if(HOCKET_FUZZ)
    add_executable(fuzz_${reader} fuzz/fuzz_${reader}.c)
    target_link_libraries(fuzz_${reader} PRIVATE hocket_fuzz)
    target_link_options(fuzz_${reader} PRIVATE -fsanitize=fuzzer)
  endif()
endforeach()
if(HOCKET_FUZZ)
  list(TRANSFORM FUZZ_READERS PREPEND fuzz_ OUTPUT_VARIABLE FUZZ_TARGETS)
  add_custom_target(fuzzers DEPENDS ${FUZZ_TARGETS})
endif()
