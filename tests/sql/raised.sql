-- What a statement raises, as 'SQLSTATE message [detail]'; 'nothing' when it raises nothing.
CREATE FUNCTION app.raised(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  detail text;
BEGIN
  EXECUTE statement;
  RETURN 'nothing';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN SQLSTATE || ' ' || SQLERRM || CASE WHEN detail = '' THEN '' ELSE ' [' || detail || ']' END;
END $$;
GRANT EXECUTE ON FUNCTION app.raised(text) TO PUBLIC;
