#include "holder.hpp"

#include <csignal>
#include <iostream>

void say(holder const& me, std::string const& text) {
  std::cout << "    " << me.name << ": " << text << std::endl;
}

void stop_here(holder const& me) {
  if (!me.stopped_before_write) return;
  std::raise(SIGSTOP);
  say(me, "wakes up and goes on as if nothing had happened");
}
