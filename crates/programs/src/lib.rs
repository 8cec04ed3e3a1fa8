//! Our five data planes: compiled objects, tables and traffic.
