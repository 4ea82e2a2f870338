# SPDX-License-Identifier: GPL-3.0-or-later
# The referee, for tests/ and bench/ only, where SimGrid and a C++ compiler are: sets
# HOCKET_REFEREE and defines the library hocket_referee. (Debian: libsimgrid-dev, g++.)
find_library(SIMGRID_LIBRARY simgrid)
find_path(SIMGRID_INCLUDE_DIR simgrid/s4u.hpp)
include(CheckLanguage)
check_language(CXX)

# The referee is used only if it compiles: SimGrid's interface changes between versions, and versions
# before 3.32 fail. Not under a sanitizer, where it would take ten times as long: what it compares is
# arithmetic. tests/ and bench/ include this file, and one trial is enough.
set(HOCKET_REFEREE OFF)
if(NOT HOCKET_SANITIZE AND SIMGRID_LIBRARY AND SIMGRID_INCLUDE_DIR AND CMAKE_CXX_COMPILER)
  enable_language(CXX) # in every folder that links it
  if(NOT DEFINED HOCKET_REFEREE_COMPILES)
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(
      HOCKET_REFEREE_COMPILES ${CMAKE_CURRENT_BINARY_DIR}/referee
      SOURCES ${CMAKE_CURRENT_LIST_DIR}/simgrid_s4u.cpp
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${SIMGRID_INCLUDE_DIR};${PROJECT_SOURCE_DIR}"
      CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  endif()
endif()
if(HOCKET_REFEREE_COMPILES AND NOT HOCKET_SANITIZE) # the first may stem from an older build's cache
  set(HOCKET_REFEREE ON)
  if(NOT TARGET hocket_referee)
    add_library(hocket_referee STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/simgrid_referee.c
                                                       ${CMAKE_CURRENT_LIST_DIR}/simgrid_s4u.cpp)
    target_compile_features(hocket_referee PRIVATE cxx_std_17)
    target_compile_options(hocket_referee PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow
                                                  -Werror>)
    target_include_directories(hocket_referee SYSTEM PRIVATE ${SIMGRID_INCLUDE_DIR})
    target_link_libraries(hocket_referee PUBLIC hocket_sim PRIVATE ${SIMGRID_LIBRARY})
  endif()
endif()
