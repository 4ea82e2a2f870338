# SPDX-License-Identifier: GPL-3.0-or-later
# Faults and kills: a slice of scripts/faults and of scripts/kills, in the release build alone. The
# allocator of a sanitizer cannot be preloaded over.
if(NOT HOCKET_SANITIZE AND NOT HOCKET_COVERAGE)
  find_package(Python3 COMPONENTS Interpreter)
  add_library(hocket_faults MODULE faults/preload.c)
  target_link_libraries(hocket_faults PRIVATE hocket_flags Threads::Threads ${CMAKE_DL_LIBS})
  # Checked versions of open and write would be defined inline, where ours are to be.
  target_compile_options(hocket_faults PRIVATE -U_FORTIFY_SOURCE)
  foreach(what slice kills)
    set(script faults --slice)
    if(what STREQUAL "kills")
      set(script kills --kills 14) # two of each command
    endif()
    list(TRANSFORM script PREPEND ${PROJECT_SOURCE_DIR}/scripts/ AT 0)
    set(name test_faults_${what})
    add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${script} --hocket $<TARGET_FILE:hocket>
                                  --preload $<TARGET_FILE:hocket_faults>)
    set_tests_properties(${name} PROPERTIES LABELS faults TIMEOUT 600)
  endforeach()
  set_tests_properties(test_faults_kills PROPERTIES RESOURCE_LOCK calibration)
endif()
