#include <fenceguard/postgres/migrate.hpp>
#include <memory>
#include <ostream>

#include "cli/command_line.hpp"
#include "cli/migration_export.hpp"

namespace fenceguard::cli {
namespace {

int migrate_to(session& with, int version, bool down) {
  std::size_t const steps =
      down ? postgres::migrate_down(with.database_url, version)
           : postgres::migrate(with.database_url,
                               version > 0 ? std::optional{version} : std::nullopt);
  with.out.add({{"steps", steps}, {"direction", down ? "down" : "up"}});
  with.out.print(*with.text_out, with.json, "");
  return done;
}

int verify(session& with) {
  for (auto const& found : postgres::verify(with.database_url)) {
    with.out.add(
        {{"finding", to_string(found.what)}, {"subject", found.subject}, {"detail", found.detail}});
  }
  with.out.print(*with.text_out, with.json, "The schema is what this program's migrations make.");
  return with.out.empty() ? done : finding;
}

int list_migrations(session& with) {
  for (auto const& step : postgres::migrations()) {
    with.out.add({{"version", step.version}, {"name", step.name}, {"sha256", step.checksum}});
  }
  with.out.print(*with.text_out, with.json, "");
  return done;
}

int export_all(session& with, std::string const& directory, export_format format) {
  for (auto const& path : export_migrations(directory, format)) {
    with.out.add({{"written", path.string()}});
  }
  with.out.print(*with.text_out, with.json, "Every file stood there already, as it should.");
  return done;
}

void add_migrations(CLI::App& program, session& with) {
  auto* const group = program.add_subcommand("migrations", "List or export the migrations");
  group->require_subcommand(1);
  auto* const list = group->add_subcommand("list", "Versions, names and checksums");
  list->callback([&with] { with.chosen = [&with] { return list_migrations(with); }; });

  auto* const exported = group->add_subcommand("export", "Write them for another migration tool");
  auto const directory = std::make_shared<std::string>();
  auto const format = std::make_shared<export_format>(export_format::plain);
  exported->add_option("--dir", *directory, "Where to")->required();
  exported->add_option("--format", *format, "plain, flyway, goose, dbmate or liquibase")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, export_format>{{"plain", export_format::plain},
                                               {"flyway", export_format::flyway},
                                               {"goose", export_format::goose},
                                               {"dbmate", export_format::dbmate},
                                               {"liquibase", export_format::liquibase}}));
  exported->callback([&with, directory, format] {
    with.chosen = [&with, directory, format] { return export_all(with, *directory, *format); };
  });
}

}  // namespace

void add_migration_commands(CLI::App& program, session& with) {
  auto* const up = program.add_subcommand("migrate", "Bring the schema up to date");
  auto const version = std::make_shared<int>(0);
  auto const down = std::make_shared<bool>(false);
  auto* const to = up->add_option("--to", *version, "This version instead of the newest")
                       ->check(CLI::NonNegativeNumber);
  up->add_flag("--down", *down,
               "Take the schema back to --to; 0 removes all fences and stored answers")
      ->needs(to);
  up->callback([&with, version, down] {
    with.chosen = [&with, version, down] { return migrate_to(with, *version, *down); };
  });

  auto* const check = program.add_subcommand("verify", "Say in what the schema differs");
  check->callback([&with] { with.chosen = [&with] { return verify(with); }; });

  add_migrations(program, with);
}

}  // namespace fenceguard::cli
